"""Making a tokenizer's definition out of its files, with `transformers`."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from vocabtrim_core.errors import TokenizerError
from vocabtrim_core.quiet import quiet_transformers
from vocabtrim_core.sentences import first_line
from vocabtrim_core.tokenizer_definition import MAX_VOCAB_SIZE, TokenizerDefinition


def make_definition(folder: Path, source: str, name: str) -> TokenizerDefinition:
    """The definition of the tokenizer in `folder`, which the user knows as `source` and `name`.

    Raises `TokenizerError` where it has no usable tokenizer.
    """
    try:
        with quiet_transformers():
            loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    # The library raises whatever its backends raise (OSError, ValueError, a bare Exception from the Rust side).
    except Exception as error:
        raise TokenizerError(
            f"The tokenizer in {source} could not be loaded: {first_line(error)} Give the folder of a model saved with "
            "its fast tokenizer."
        ) from error
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(f"The tokenizer of {name} has no fast form (tokenizer.json), which counting needs.")
    size = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    if not 0 < size <= MAX_VOCAB_SIZE:
        raise TokenizerError(
            f"The tokenizer of {name} has ids up to {size - 1:,}; supported are vocabularies of 1 to "
            f"{MAX_VOCAB_SIZE:,} tokens. Give a folder with a tokenizer.json that is not damaged."
        )
    return _define(loaded, backend, size)


def _define(loaded: PreTrainedTokenizerBase, backend: tokenizers.Tokenizer, vocab_size: int) -> TokenizerDefinition:
    definition = json.loads(backend.to_str())
    # What shapes one call (padding, truncation) or only the output (decoder) says nothing of how text is split.
    identity = {key: definition[key] for key in ("model", "normalizer", "pre_tokenizer", "added_tokens")}
    identity["chat_template"] = loaded.chat_template
    control = [token["id"] for token in definition["added_tokens"] if _is_control(token, str(loaded.chat_template))]
    backend.no_truncation()
    backend.no_padding()
    return TokenizerDefinition(
        fingerprint=hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest(),
        vocab_size=vocab_size,
        control_ids=tuple(sorted(control)),
        eos_ids=(int(loaded.eos_token_id),) if loaded.eos_token_id is not None else (),
        bos_id=loaded.bos_token_id,
        chat_template=loaded.chat_template,
        special_tokens=loaded.special_tokens_map,
        plain=json.dumps(_plain_form(definition, frozenset(control)), ensure_ascii=False),
        control=backend.to_str(),
    )


def _is_control(added_token: dict, chat_template: str) -> bool:
    """Whether an added token steers a model rather than spelling text.

    Not every added token does: Gemma adds runs of line breaks and HTML tags. Not every control token is flagged
    special: Qwen3's `<tool_call>` and `<|fim_prefix|>` are not.
    """
    text = added_token["content"]
    return (
        added_token["special"]
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.strip() != "" and text in chat_template)
    )


def _plain_form(definition: dict, control: frozenset[int]) -> dict:
    """The same tokenizer, with exactly the control tokens flagged special, which `Tokenizer.plain` reads as text."""
    added = [{**token, "special": token["id"] in control} for token in definition["added_tokens"]]
    return {**definition, "added_tokens": added, "truncation": None, "padding": None}
