"""Tokenizers: text and chats to token ids and back, and what identifies a tokenizer.

Text that people wrote may contain the characters of a control token ("<|im_end|>"). Such characters are text here,
in corpora and in prompts: only a chat template may produce control tokens, and an assistant's turn those that models
write inside of a turn (see `chat_templates`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import tokenizers

from vocabtrim_core.chat_templates import ChatTemplate, Message, Rendering
from vocabtrim_core.errors import TokenizerError
from vocabtrim_core.model_files import model_folder, model_name
from vocabtrim_core.paths import is_file
from vocabtrim_core.tokenizer_definition import TokenizerDefinition, kept_definition


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer with what the project needs to know of it.

    `vocab_size` is its largest id + 1 (a model may pad beyond it). `control_ids` are the tokens that steer a model
    rather than spell text (turn marks, tool calls, padding), ascending. `fingerprint` is the sha256 of its vocabulary,
    merges, normalisation, splitting, added tokens and chat template: two tokenizers with the same fingerprint count the
    same text alike, wherever they were loaded from.

    `plain` and `control` are its two forms in the `tokenizers` library, made when first used (which takes a second for
    a large vocabulary) and only ever read. Neither cuts or pads.
    """

    name: str
    definition: TokenizerDefinition

    def __reduce__(self) -> tuple:
        # Another process makes its own forms: the library's pickles forget `encode_special_tokens`.
        return Tokenizer, (self.name, self.definition)

    @property
    def fingerprint(self) -> str:
        return self.definition.fingerprint

    @property
    def vocab_size(self) -> int:
        return self.definition.vocab_size

    @property
    def control_ids(self) -> tuple[int, ...]:
        return self.definition.control_ids

    @property
    def eos_ids(self) -> tuple[int, ...]:
        return self.definition.eos_ids

    @cached_property
    def plain(self) -> tokenizers.Tokenizer:
        """Takes the characters of control tokens for text."""
        form = tokenizers.Tokenizer.from_str(self.definition.plain)
        form.encode_special_tokens = True
        return form

    @cached_property
    def control(self) -> tokenizers.Tokenizer:
        """Takes the characters of control tokens for control tokens."""
        return tokenizers.Tokenizer.from_str(self.definition.control)

    @property
    def has_chat_template(self) -> bool:
        return bool(self.definition.chat_template)

    @cached_property
    def template_digest(self) -> str:
        """sha256 hex digest of what renders chats beside the fingerprint: the texts of BOS, EOS and their like."""
        return hashlib.sha256(json.dumps(self.definition.special_tokens, sort_keys=True).encode()).hexdigest()

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
        return ChatTemplate(self.name, self.definition, self.control_texts, eos)

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
        start = [self.definition.bos_id] if self.definition.bos_id is not None else []
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
    folder, name = model_folder(source, weights=False), model_name(source)
    if not is_file(folder / "tokenizer.json"):
        raise TokenizerError(
            f"{source} has no tokenizer.json. Give the folder of a model saved with its fast tokenizer."
        )

    def make() -> TokenizerDefinition:
        from vocabtrim_core.tokenizer_loading import make_definition  # which imports transformers

        return make_definition(folder, str(source), name)

    return Tokenizer(name, kept_definition(folder, make))
