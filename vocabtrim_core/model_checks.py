"""What a model's files may get wrong and still be loaded: found before anything is computed with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from vocabtrim_core.errors import ModelError
from vocabtrim_core.sentences import shortened

MAX_LAYERS = 1000


def check_layers(config: Mapping[str, Any], name: str) -> None:
    """ModelError where a config.json asks for more layers than can be made: they would be, before a weight is read."""
    for part in (config, config.get("text_config")):
        for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
            layers = part.get(key) if isinstance(part, Mapping) else None
            if isinstance(layers, int | float) and layers > MAX_LAYERS:
                raise ModelError(
                    f"The model {name} has {key} = {shortened(str(layers), 40)} in its config.json; supported are up "
                    f"to {MAX_LAYERS:,}. Correct it, or fetch the model again."
                )


def check_model(model: PreTrainedModel, name: str) -> None:
    """ModelError where the configuration or the weights of a loaded model cannot be decoded with."""
    config = model.config.get_text_config()
    _check_number(config, "num_hidden_layers", 1, name)
    _check_number(config, "max_position_embeddings", 1, name)
    for scale in ("logit_scale", "logits_scaling", "final_logit_softcapping"):
        _check_number(config, scale, -math.inf, name)
    rows, head_rows = _rows(model.get_input_embeddings()), _rows(model.get_output_embeddings())
    if 0 < rows < head_rows:
        raise ModelError(
            f"The model {name} has embeddings of {rows:,} tokens and an LM head of {head_rows:,}: it could not read "
            "what it writes. Save it with as many of both."
        )
    check_finite(model.named_parameters(), f"The model {name}")


def end_ids(value: Any, name: str) -> set[int]:
    """The end-of-sequence ids that a configuration gives: none, one or several. ModelError for anything else."""
    ids = [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
    for one in ids:
        if type(one) is not int or not 0 <= one < 2**31:
            raise ModelError(
                f"The model {name} has {str(one)[:40]!r} as eos_token_id, which is no token id. Correct its "
                "config.json or generation_config.json."
            )
    return set(ids)


def check_finite(tensors: Iterable[tuple[str, torch.Tensor]], what: str) -> None:
    """ModelError where a tensor holds NaN or infinity: training failed, or the file is damaged."""
    for key, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            # Formats of eight bits are not compared as they are.
            values = tensor.float() if tensor.element_size() == 1 else tensor
            if not torch.stack(values.detach().aminmax()).isfinite().all():
                raise ModelError(
                    f"{what} is damaged: {key} holds values that are not finite numbers. Fetch or save its weights "
                    "again."
                )


def _rows(module: torch.nn.Module | None) -> int:
    weight = getattr(module, "weight", None)
    return len(weight) if isinstance(weight, torch.Tensor) else 0


def _check_number(config: PreTrainedConfig, field: str, least: float, name: str) -> None:
    value = getattr(config, field, None)
    if value is None or (type(value) in (int, float) and value >= least):
        return
    wanted = "a number" if least == -math.inf else f"a number from {least:g}"
    raise ModelError(
        f"The model {name} has {field} = {str(value)[:40]!r} in its config.json, which has to be {wanted}. Correct it, "
        "or fetch the model again."
    )
