"""The files of a draft head as they are published: named tensors and a configuration, read without running anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from vocabtrim_core.errors import ModelError
from vocabtrim_core.layers import activations_of, as_float16
from vocabtrim_core.model_checks import check_finite
from vocabtrim_core.sentences import first_line

# The first of these that a folder has are its weights. Training leaves other .bin and .pt files beside them.
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "medusa*.pt")
_SHOWN = 3


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """`tensors` by name, and what the folder's config.json says (nothing where there is none)."""

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]

    def renamed(self, rename: Callable[[str], str | None]) -> dict[str, torch.Tensor]:
        """The tensors under other names; those whose name becomes None are left out."""
        named = ((rename(name), tensor) for name, tensor in self.tensors.items())
        return {name: tensor for name, tensor in named if name is not None}


def read_checkpoint(folder: Path, name: str) -> Checkpoint:
    """The checkpoint in `folder`. Raises `ModelError` where a file is damaged or holds more than tensors."""
    tensors: dict[str, torch.Tensor] = {}
    for file in _files(folder):
        with _sentence_of(file):
            tensors |= _read(file)
    check_finite(tensors.items(), f"The drafter {name}")
    return Checkpoint(name, read_config(folder), tensors)


def tensor_names(folder: Path) -> set[str]:
    """The names of the tensors in `folder`, without their values. Raises as `read_checkpoint` does."""
    names: set[str] = set()
    for file in _files(folder):
        with _sentence_of(file):
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as opened:
                    names |= set(opened.keys())
            else:
                names |= set(_load(file))
    return names


@contextmanager
def _sentence_of(file: Path) -> Iterator[None]:
    try:
        yield
    # Bad files make the readers raise errors of every kind.
    except Exception as error:
        raise ModelError(
            f"{file} could not be read as tensors: {first_line(error)} Give weights as safetensors, or a PyTorch "
            "file that holds tensors by name and nothing else."
        ) from error


def read_config(folder: Path) -> dict[str, Any]:
    """What config.json says, or nothing where there is none."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} could not be read: {first_line(error)}") from error
    if not isinstance(config, dict):
        raise ModelError(f"{path} is not a configuration: it holds no JSON object.")
    return config


def fill(module: nn.Module, tensors: Mapping[str, torch.Tensor], name: str, dtype: torch.dtype) -> None:
    """Make `tensors` the parameters of `module`, which has to have just these. ModelError names what does not fit."""
    wanted = {key: tuple(parameter.shape) for key, parameter in module.state_dict().items()}
    missing, unknown = wanted.keys() - tensors.keys(), tensors.keys() - wanted.keys()
    if missing:
        raise ModelError(f"The drafter {name} is incomplete: it lacks {listed(missing)}.")
    if unknown:
        raise ModelError(
            f"The drafter {name} has parts that are not supported: {listed(unknown)}. Supported are the layouts of "
            "EAGLE-1, EAGLE-2, EAGLE-3 (one layer) and Medusa, not quantised."
        )
    for key, shape in wanted.items():
        if tuple(tensors[key].shape) != shape:
            raise ModelError(
                f"The drafter {name} does not fit: {key} is {tuple(tensors[key].shape)}, and its configuration, or "
                f"this target, asks for {shape}."
            )
    weights = {key: as_weight(tensor, dtype, f"The drafter {name} ({key})") for key, tensor in tensors.items()}
    module.load_state_dict(weights, assign=True)
    module.requires_grad_(False).eval()


def as_weight(tensor: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """The tensor in memory of its own, in the dtype that is decoded with: where that is float16, matrices are in it and
    vectors in float32. Raises `ModelError`, which calls it `name`, where float16 cannot hold it."""
    if dtype == torch.float16 and tensor.dim() > 1:
        return as_float16(tensor, name).clone(memory_format=torch.contiguous_format)
    return tensor.to(activations_of(dtype), copy=True).contiguous()


def listed(names: Iterable[str]) -> str:
    """A few of the names, for a message."""
    ordered = sorted(names)
    more = f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else ""
    return ", ".join(ordered[:_SHOWN]) + more


def _files(folder: Path) -> list[Path]:
    found = (sorted(folder.glob(pattern)) for pattern in _WEIGHTS)
    return next((files for files in found if files), [])


def _read(file: Path) -> dict[str, torch.Tensor]:
    if file.suffix == ".safetensors":
        with safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    return _load(file)


def _load(file: Path) -> dict[str, torch.Tensor]:
    try:
        held = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # a file of PyTorch's old format cannot be mapped
        held = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(held, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) and _is_whole(tensor)
        for name, tensor in held.items()
    ):
        raise SafetensorError("it holds something else than tensors by name.")
    return held


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether the file has all its values: a sparse or an expanded tensor may stand for any number of them."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
    )
