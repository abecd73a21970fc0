"""Tokenizers: text and chats to token ids and back, and what identifies a tokenizer.

Text that people wrote may contain the characters of a control token ("<|im_end|>"). Such characters are text here,
in corpora and in prompts: only a chat template may produce control tokens, and an assistant's turn those that models
write inside of a turn (see `chat_templates`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from vocabtrim_core.chat_templates import ChatTemplate, Message, Rendering
from vocabtrim_core.errors import TokenizerError
from vocabtrim_core.hub import first_line, model_folder, model_name, quiet_transformers
from vocabtrim_core.paths import is_file

MAX_VOCAB_SIZE = 2**22


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer with what the project needs to know of it.

    `vocab_size` is its largest id + 1 (a model may pad beyond it). `control_ids` are the tokens that steer a model
    rather than spell text (turn marks, tool calls, padding), ascending. `fingerprint` is the sha256 of its vocabulary,
    merges, normalisation, splitting, added tokens and chat template: two tokenizers with the same fingerprint count the
    same text alike, wherever they were loaded from.

    `plain` and `control` are its two forms in the `tokenizers` library, only ever read: the one takes the characters of
    control tokens for text, the other for control tokens. Neither cuts or pads.
    """

    name: str
    fingerprint: str
    vocab_size: int
    control_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]
    plain: tokenizers.Tokenizer = field(repr=False, compare=False)
    control: tokenizers.Tokenizer = field(repr=False, compare=False)
    _chat: PreTrainedTokenizerBase = field(repr=False, compare=False)

    def __reduce__(self) -> tuple:
        # The library's pickles forget `encode_special_tokens`, without which the plain form is the control form.
        plain = self.plain.to_str(), self.plain.encode_special_tokens
        others = self.name, self.fingerprint, self.vocab_size, self.control_ids, self.eos_ids
        return _unpickled, (others, plain, self._chat)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._chat.chat_template)

    @cached_property
    def template_digest(self) -> str:
        """sha256 hex digest of what renders chats beside the fingerprint: the texts of BOS, EOS and their like."""
        return hashlib.sha256(
            json.dumps(self._chat.special_tokens_map, sort_keys=True, default=str).encode()
        ).hexdigest()

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """The characters of every control token, in the order of `control_ids`."""
        return tuple(str(self.plain.id_to_token(i)) for i in self.control_ids)

    def encode_texts(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text. Literal control-token text stays text; nothing is added at either end."""
        return [encoding.ids for encoding in self.plain.encode_batch_fast(list(texts), add_special_tokens=False)]

    @cached_property
    def template(self) -> ChatTemplate:
        """The chat template. What it does raises TokenizerError where there is none."""
        eos = [str(self.plain.id_to_token(i)) for i in self.eos_ids]
        return ChatTemplate(self.name, self._chat, self.control_texts, eos)

    def encode_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = False,
        tools: Sequence[dict] | None = None,
    ) -> list[int]:
        """Token ids of a chat rendered with the chat template, whose control tokens are control tokens.

        Which control-token text inside a message is text `chat_templates` says. Raises `TokenizerError` where there is
        no template, it refuses the messages, or such text cannot be told from the template's words.
        """
        return self.encode_rendering(self.template.rendering(messages, tools, add_generation_prompt))

    def encode_rendering(self, rendering: Rendering) -> list[int]:
        """Token ids of a rendered chat or a part of one."""
        ids: list[int] = []
        for text, as_text in self.template.pieces(rendering):
            ids += self.encode_texts([text])[0] if as_text else self._control_encode(text)
        return ids

    def turn_ends(self, roles: Sequence[str]) -> list[int | None]:
        """For each turn of a chat with these roles, the control token that the template puts after its content.

        After an assistant's turn it is the token that a model ends the turn with. None where there is no such token.
        Raises `TokenizerError` where the template refuses such a chat, and where it drops or moves a turn.
        """
        _, *after = self.template.around([{"role": role, "content": ""} for role in roles])
        ends = {self.id_of(text) for text in self.template.frame.ends}
        control = set(self.control_ids)
        first = [next((i for i in self._control_encode(text) if i in control), None) for text in after]
        return [i if i in ends else None for i in first]

    def encode_prompt(self, prompt: str) -> list[int]:
        """The ids that a model should answer: one user turn where there is a chat template, else BOS and the text."""
        if self.has_chat_template:
            return self.encode_chat([{"role": "user", "content": prompt}], add_generation_prompt=True)
        start = [self._chat.bos_token_id] if self._chat.bos_token_id is not None else []
        return start + self.encode_texts([prompt])[0]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a sequence of ids, control tokens written out."""
        return self.plain.decode(list(ids), skip_special_tokens=False)

    def id_of(self, piece: str) -> int | None:
        """The id of a vocabulary entry as the tokenizer file spells it, or None."""
        return self.plain.token_to_id(piece)

    def piece(self, token_id: int) -> str:
        """The vocabulary entry as the tokenizer file spells it ("Ġthe"); empty for an id that it does not define."""
        return self.plain.id_to_token(token_id) or ""

    def _control_encode(self, rendered: str) -> list[int]:
        return self.control.encode(rendered, add_special_tokens=False).ids


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a folder with `tokenizer.json`, or of a hub id.

    Raises `ModelError` where there is no such folder or hub model, `TokenizerError` where it has no usable tokenizer.
    """
    folder = model_folder(source, weights=False)
    name = model_name(source)
    if not is_file(folder / "tokenizer.json"):
        raise TokenizerError(
            f"{source} has no tokenizer.json. Give the folder of a model saved with its fast tokenizer."
        )
    try:
        with quiet_transformers():
            chat = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    # The library raises whatever its backends raise (OSError, ValueError, a bare Exception from the Rust side).
    except Exception as error:
        raise TokenizerError(
            f"The tokenizer in {source} could not be loaded: {first_line(error)} Give the folder of a model saved with "
            "its fast tokenizer."
        ) from error
    backend = getattr(chat, "backend_tokenizer", None)
    if backend is not None and not 0 < _size(backend) <= MAX_VOCAB_SIZE:
        raise TokenizerError(
            f"The tokenizer of {name} has ids up to {_size(backend) - 1:,}; supported are vocabularies of 1 to "
            f"{MAX_VOCAB_SIZE:,} tokens. Give a folder with a tokenizer.json that is not damaged."
        )
    if backend is None:
        raise TokenizerError(f"The tokenizer of {name} has no fast form (tokenizer.json), which counting needs.")
    return _wrap(name, chat, backend)


def _wrap(name: str, chat: PreTrainedTokenizerBase, backend: tokenizers.Tokenizer) -> Tokenizer:
    definition = json.loads(backend.to_str())
    # What shapes one call (padding, truncation) or only the output (decoder) says nothing of how text is split.
    identity = {key: definition[key] for key in ("model", "normalizer", "pre_tokenizer", "added_tokens")}
    identity["chat_template"] = chat.chat_template
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    control = [token["id"] for token in definition["added_tokens"] if _is_control(token, str(chat.chat_template))]
    eos_ids = (int(chat.eos_token_id),) if chat.eos_token_id is not None else ()
    vocab_size = _size(backend)
    backend.no_truncation()
    backend.no_padding()
    plain = _plain_form(definition, frozenset(control))
    return Tokenizer(name, fingerprint, vocab_size, tuple(sorted(control)), eos_ids, plain, backend, chat)


def _size(backend: tokenizers.Tokenizer) -> int:
    """The largest id + 1."""
    return max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def _unpickled(
    others: tuple[str, str, int, tuple[int, ...], tuple[int, ...]],
    plain: tuple[str, bool],
    chat: PreTrainedTokenizerBase,
) -> Tokenizer:
    # As `_wrap` takes it: without special settings, so that a pickle loses nothing of it.
    control = chat.backend_tokenizer
    return Tokenizer(*others, _form(*plain), control, chat)


def _form(definition: str, encode_special_tokens: bool) -> tokenizers.Tokenizer:
    form = tokenizers.Tokenizer.from_str(definition)
    form.encode_special_tokens = encode_special_tokens
    return form


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


def _plain_form(definition: dict, control: frozenset[int]) -> tokenizers.Tokenizer:
    """The same tokenizer, reading control tokens' characters as text and every other added token as before."""
    added = [{**token, "special": token["id"] in control} for token in definition["added_tokens"]]
    whole = {**definition, "added_tokens": added, "truncation": None, "padding": None}
    return _form(json.dumps(whole), encode_special_tokens=True)
