"""Loading a target, a drafter, and the two as a pair that can decode together."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from vocabtrim_core.drafters import DrafterModel
from vocabtrim_core.drafters.checkpoints import read_config
from vocabtrim_core.drafters.independent import IndependentModel
from vocabtrim_core.drafters.registry import INDEPENDENT, NAMES, WITHOUT_FILES, load_added, shipped_folder
from vocabtrim_core.embedded import EMBEDDED, embedded_target_folder
from vocabtrim_core.errors import ModelError, TooLargeError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.language_model import LanguageModel, input_embeddings
from vocabtrim_core.layers import activations_of, as_float16
from vocabtrim_core.lean import COVERED
from vocabtrim_core.model_checks import check_layers, check_model, end_ids
from vocabtrim_core.model_files import model_folder, model_name
from vocabtrim_core.number_format import AUTO, DTYPES, NumberFormat, number_format
from vocabtrim_core.paths import is_file, reason
from vocabtrim_core.progress import Progress
from vocabtrim_core.quiet import quiet_transformers
from vocabtrim_core.sentences import first_line
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer

_WEIGHTS = (".safetensors", ".bin", ".pt")

# Of the largest logit: far above what summing in another order changes, far below what a forgotten scale or bias does.
_HEAD_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-4, torch.bfloat16: 2e-2}


@dataclass(frozen=True, eq=False)
class ModelPair:
    """A target and a drafter of any kind that share a tokenizer. `usable_vocab_size` counts the ids that all define."""

    target: LanguageModel
    drafter: DrafterModel
    tokenizer: Tokenizer

    @property
    def name(self) -> str:
        return f"{self.target.name} + {self.drafter.name}"

    @property
    def usable_vocab_size(self) -> int:
        return min(self.tokenizer.vocab_size, self.target.vocab_size, self.drafter.vocab_size)


def load_pair(
    target: str | Path = EMBEDDED,
    drafter: str | Path = INDEPENDENT,
    dtype: str = AUTO,
    on_progress: Progress | None = None,
) -> ModelPair:
    """Load a pair: the target from a folder, a hub id or the embedded one ("embedded", fetched on first use), the
    drafter as `load_drafter` does.

    Raises `ModelError` where a model cannot be loaded or the two cannot work together, `SettingError` for the dtype.
    """
    report = on_progress or (lambda share, message: None)
    if drafter not in NAMES:
        # Before the target, whose loading takes long.
        _check_folder(model_folder(drafter))
    target_model, tokenizer = load_target(target, dtype, lambda share, message: report(0.9 * share, message))
    report(0.9, "Loading the drafter")
    drafter_model = load_drafter(drafter, target_model, tokenizer)
    report(1.0, "The models are ready")
    return ModelPair(target_model, drafter_model, tokenizer)


def load_drafter(source: str | Path, target: LanguageModel, tokenizer: Tokenizer) -> DrafterModel:
    """Load a drafter for `target`, in its dtype, from a folder or a hub id, of whatever kind its files are; or by the
    name of a kind, the one that comes with the project.

    What a drafter lacks of embeddings and head is the target's: the same tensors. Raises `ModelError` where it cannot
    be loaded or does not fit the target.
    """
    if source in WITHOUT_FILES:
        return WITHOUT_FILES[str(source)](target)
    if source in NAMES:
        source = shipped_folder(str(source))
    folder = model_folder(source)
    added = load_added(folder, model_name(source), target)
    if added is not None:
        return added
    model = load_model(source, target.number_format, lender=target)
    if (folder / "tokenizer.json").is_file() or model.head is not target.head:
        _refuse_other_tokenizer(tokenizer, load_tokenizer(folder), target.name, model.name)
    needed = min(tokenizer.vocab_size, target.vocab_size)
    if model.vocab_size < needed:
        raise ModelError(
            f"The drafter {model.name} has embeddings of {model.vocab_size:,} tokens, fewer than the {needed:,} that "
            f"{target.name} writes. Choose a drafter with the target's vocabulary."
        )
    return IndependentModel(_decodable(model))


def _decodable(model: LanguageModel) -> LanguageModel:
    """The model; ModelError now, not when it is first used, where nothing here decodes it rightly."""
    if type(model.body) not in COVERED:
        model.engine  # noqa: B018
    return model


def _check_folder(folder: Path) -> None:
    """ModelError where a folder holds no model of any kind."""
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {reason(error)}.") from None
    if not any(name == "config.json" or name.endswith(_WEIGHTS) for name in names):
        raise ModelError(f"{folder} is not a model folder: it has no config.json. Choose a folder that has one.")


def load_target(
    source: str | Path = EMBEDDED, dtype: str = AUTO, on_progress: Progress | None = None
) -> tuple[LanguageModel, Tokenizer]:
    """Load a target with its tokenizer, whose end-of-sequence token is one of the model's `eos_ids`.

    Raises as `load_model` does.
    """
    report = on_progress or (lambda share, message: None)
    if source == EMBEDDED:
        source = embedded_target_folder(lambda share, message: report(0.9 * share, message))
    report(0.9, "Loading the target")
    model = load_model(source, dtype)
    tokenizer = load_tokenizer(source)
    target = replace(model, eos_ids=tuple(sorted({*model.eos_ids, *tokenizer.eos_ids})))
    return _decodable(target), tokenizer


def load_model(source: str | Path, dtype: str = AUTO, lender: LanguageModel | None = None) -> LanguageModel:
    """Load a causal language model from a folder or a hub id; no code that comes with it is run.

    Weights are safetensors, or else a `.bin` file read with `weights_only`. A checkpoint without input embeddings takes
    the embeddings and the head of `lender` as they are, without a copy. Raises `ModelError` for whatever cannot be
    loaded, and where body and head do not give the model's own logits; `TooLargeError` for weights that a number
    format asked for by name cannot hold, for which `auto` takes float32; `SettingError` for an unknown format.
    """
    chosen = number_format(dtype)
    folder = model_folder(source)
    name = model_name(source)
    try:
        return _load(folder, name, chosen, lender)
    except TooLargeError as error:
        if dtype != AUTO:
            raise
        return _load(folder, name, NumberFormat("float32", f"auto is float32 for this model: {error}"), lender)


def _load(folder: Path, name: str, chosen: NumberFormat, lender: LanguageModel | None) -> LanguageModel:
    weights = DTYPES[chosen.name]
    model, missing = _read(folder, name, activations_of(weights))
    check_model(model, name)
    model.requires_grad_(False)
    if weights == torch.float16:
        _round(model, name)
    body, linear = model.base_model, model.get_output_embeddings()
    if body is model or not isinstance(body, PreTrainedModel) or not isinstance(linear, torch.nn.Linear):
        raise ModelError(
            f"The model {name} ({type(model).__name__}) has no plain LM head, so there is nothing to trim."
        )

    embeddings = _names(model, input_embeddings(model))
    if missing & embeddings and missing <= embeddings | _names(model, linear.weight):
        head = _borrow(body, name, lender)
    elif missing:
        raise ModelError(f"The model {name} is incomplete: {len(missing)} tensors are missing, such as {min(missing)}.")
    else:
        head = _head(model, linear, weights)
        _check_head(model, body, head, name)

    config = model.config.get_text_config()
    generation = getattr(model.generation_config, "eos_token_id", None)
    eos_ids = end_ids(getattr(config, "eos_token_id", None), name) | end_ids(generation, name)
    max_length = getattr(config, "max_position_embeddings", None) or sys.maxsize
    return LanguageModel(name, body, head, tuple(sorted(eos_ids)), max_length, chosen.note)


def _read(folder: Path, name: str, dtype: torch.dtype) -> tuple[PreTrainedModel, set[str]]:
    """The model of a folder, and the names of the parameters that its files lack."""
    if not is_file(folder / "config.json"):
        raise ModelError(f"{folder} is not a model folder: it has no config.json. Choose a folder that has one.")
    check_layers(read_config(folder), name)
    try:
        with quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, trust_remote_code=False, output_loading_info=True
            )
    # The library and what it reads with raise errors of every kind for a bad file, a bare Exception among them.
    except Exception as error:
        raise ModelError(
            f"The model {name} could not be loaded: {first_line(error)} Give the folder or hub id of a causal language "
            "model that transformers knows, with its weights as safetensors."
        ) from error
    model, loading = loaded
    return model, set(loading["missing_keys"])


def _round(model: PreTrainedModel, name: str) -> None:
    """Round the model's matrices to what float16 can hold."""
    for key, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.copy_(as_float16(parameter, f"The model {name} ({key})"))


def _names(model: PreTrainedModel, parameter: torch.Tensor) -> set[str]:
    return {name for name, other in model.named_parameters(remove_duplicate=False) if other is parameter}


def _head(model: PreTrainedModel, linear: torch.nn.Linear, weights: torch.dtype) -> RankedHead:
    config = model.config.get_text_config()
    scale = getattr(config, "logit_scale", None) or 1.0  # Cohere multiplies,
    scale /= getattr(config, "logits_scaling", None) or 1.0  # Granite divides.
    return RankedHead(
        weight=linear.weight.detach().to(weights),
        ranking=torch.arange(linear.weight.shape[0]),
        bias=None if linear.bias is None else linear.bias.detach(),
        logit_scale=scale,
        soft_cap=getattr(config, "final_logit_softcapping", None),
    )


@torch.inference_mode()
def _check_head(model: PreTrainedModel, body: PreTrainedModel, head: RankedHead, name: str) -> None:
    """Refuse a model that does more between body and logits than `RankedHead` does."""
    ids = torch.arange(8)[None] * (head.vocab_size // 8)  # [1, 8]
    try:
        expected = model(input_ids=ids, use_cache=False).logits[0].float()  # [8, V]
        hidden = getattr(body(input_ids=ids, use_cache=False), "last_hidden_state", None)  # [1, 8, H]
    # Models raise errors of every kind for a config that is wrong, or for input that they lack.
    except Exception as error:
        raise ModelError(
            f"The model {name} ({type(model).__name__}) cannot read text: {first_line(error)} Choose another model."
        ) from error
    if hidden is not None and hidden.shape[-1] == head.hidden_size:
        difference = (head.logits(hidden[0]).float() - expected).abs().max()
        if difference <= _HEAD_TOLERANCE[head.weight.dtype] * expected.abs().max().clamp(min=1.0):
            return
    raise ModelError(
        f"The LM head of {name} ({type(model).__name__}) cannot be trimmed: the model treats its logits in a way that "
        "is not supported (supported are a bias, a logit scale and a final soft-cap). Choose another model."
    )


def _borrow(body: PreTrainedModel, name: str, lender: LanguageModel | None) -> RankedHead:
    """Give a body without input embeddings the lender's; the lender's head."""
    if lender is None:
        raise ModelError(
            f"The model {name} has no embeddings of its own: it is a drafter that uses its target's. Choose it as the "
            "drafter, beside its target."
        )
    config = body.config.get_text_config()
    if (config.hidden_size, config.vocab_size) != (lender.hidden_size, lender.vocab_size):
        raise ModelError(
            f"The drafter {name} uses its target's embeddings, so it needs a target of width {config.hidden_size} with "
            f"{config.vocab_size:,} tokens; {lender.name} has width {lender.hidden_size} and {lender.vocab_size:,} "
            "tokens. Choose a drafter made for this target, or one with embeddings of its own."
        )
    body.set_input_embeddings(lender.body.get_input_embeddings())
    return lender.head


def _refuse_other_tokenizer(target: Tokenizer, drafter: Tokenizer, target_name: str, drafter_name: str) -> None:
    """Raise unless every id stands for the same piece on both sides."""
    for i in range(max(target.vocab_size, drafter.vocab_size)):
        ours, theirs = target.piece(i), drafter.piece(i)
        if ours != theirs:
            raise ModelError(
                f"{target_name} and {drafter_name} cannot work together, because their tokenizers differ: token {i} is "
                f"{_shown(ours)} for the target and {_shown(theirs)} for the drafter. Choose a drafter with the "
                "target's tokenizer."
            )


def _shown(piece: str) -> str:
    return f"“{piece}”" if piece else "undefined"
