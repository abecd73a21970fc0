"""Documents to token ids: texts, chats in the template's words, and what is token ids already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from vocabtrim_core.chat_templates import Written, has_thought
from vocabtrim_core.corpora import Document
from vocabtrim_core.corpora.messages import texts_of
from vocabtrim_core.counting.ledger import (
    AS_TEXT,
    BY_TEMPLATE,
    CALLS,
    CONTROL,
    COUNTED,
    NOT_ASSISTANTS,
    RECORDS,
    THOUGHTS,
    TOOLS,
    TURNS,
    Ledger,
)
from vocabtrim_core.errors import TokenizerError
from vocabtrim_core.fast_tokenization import Encoders, FlatIds

Refuse = Callable[[Document, str], None]


class DocumentEncoder:
    """Encodes documents; of a chat either all turns or the assistant's only (`roles`).

    All turns: the whole chat as the chat template renders it, turn marks and tools included. The assistant's: what a
    model wrote in the chat, as the template has it (content, thought, calls), each turn encoded apart since a model's
    first token never merges with the prompt, and the control token that ends the turn. An empty thought that the
    template adds is not the model's. `chat_templates` says which control-token text is text.
    """

    def __init__(self, encoders: Encoders, roles: Literal["all", "assistant"]) -> None:
        self._encoders = encoders
        self._tokenizer = encoders.tokenizer
        self._roles = roles
        self._encode_chats = self._whole_chats if roles == "all" else self._answers
        # Most chats of a corpus have one of a few sequences of roles.
        self._turn_ends = lru_cache(maxsize=4096)(self._tokenizer.turn_ends)

    def encode(self, documents: Sequence[Document], refuse: Refuse, ledger: Ledger) -> tuple[list[Document], FlatIds]:
        """The documents, in some order, and their token ids. What cannot be encoded goes to `refuse`, with the reason.

        What became of the documents and what is in them is added to `ledger`. Where there is no chat template, no chat
        can be encoded.
        """
        texts = [document for document in documents if document.text is not None]
        chats = [document for document in documents if document.messages is not None]
        ready = [document for document in documents if document.ids is not None]
        kept: list[Document] = []
        parts: list[FlatIds] = []
        if texts:
            kept += texts
            parts.append(self._encoders.at_hand("plain").encode([document.text or "" for document in texts]))
        if not self._tokenizer.has_chat_template:
            for chat in chats:
                refuse(chat, f"a chat, and the tokenizer {self._tokenizer.name} has no chat template to render it with")
            chats = []
        if chats:
            more, flat = self._encode_chats(chats, refuse, ledger)
            kept += more
            parts.append(flat)
        if ready:
            more, flat = self._checked_ids(ready, refuse)
            kept += more
            parts.append(flat)
        ledger[RECORDS, COUNTED] += len(kept)
        ledger.update(note for document in kept for note in document.notes)
        return kept, FlatIds.joined(parts) if parts else FlatIds.of([])

    def _whole_chats(self, chats: Sequence[Document], refuse: Refuse, ledger: Ledger) -> tuple[list[Document], FlatIds]:
        whole: list[Document] = []
        rendered: list[str] = []
        apart: list[Document] = []
        apart_ids: list[list[int]] = []
        for chat in chats:
            messages = chat.messages or ()
            try:
                rendering = self._tokenizer.template.rendering(messages, chat.tools)
            except TokenizerError as error:
                refuse(chat, str(error))
                continue
            if rendering.typed:
                apart_ids.append(self._tokenizer.encode_rendering(rendering))
                apart.append(chat)
            else:
                rendered.append(rendering.text)
                whole.append(chat)
            self._enter(chat, rendering.text, bool(rendering.typed), ledger)
        flat = self._encoders.at_hand("control").encode(rendered)
        return [*whole, *apart], FlatIds.joined([flat, FlatIds.of(apart_ids)]) if apart else flat

    def _answers(self, chats: Sequence[Document], refuse: Refuse, ledger: Ledger) -> tuple[list[Document], FlatIds]:
        plain, written, apart = _Turns(), _Turns(), _Turns()
        for chat in chats:
            messages = chat.messages or ()
            answers = [message for message in messages if message["role"] == "assistant"]
            if not answers:
                refuse(chat, "no message is the assistant's")
                continue
            try:
                # Where the template has the contents word for word, the chat need not be rendered.
                if all(len(message) == 2 and self._is_plain(message["content"]) for message in answers):
                    ends = self._turn_ends(tuple(message["role"] for message in messages))
                    plain.add(
                        chat,
                        [message["content"] for message in answers],
                        [end for message, end in zip(messages, ends, strict=True) if message["role"] == "assistant"],
                    )
                    self._enter(chat, None, False, ledger)
                    continue
                text, turns = self._tokenizer.template.written(messages, chat.tools)
            except TokenizerError as error:
                refuse(chat, str(error))
                continue
            if any(turn.body.typed for turn in turns):
                apart.add(chat, [turn.body for turn in turns], self._ids_of_ends(turns))
            else:
                written.add(chat, [turn.body.text for turn in turns], self._ids_of_ends(turns))
            self._enter(chat, text, False, ledger)
        encoded = [
            plain.ended(self._encoders.at_hand("plain").encode(plain.turns)),
            written.ended(self._encoders.at_hand("control").encode(written.turns)) if written.turns else FlatIds.of([]),
            apart.ended(FlatIds.of([self._tokenizer.encode_rendering(turn) for turn in apart.turns])),
        ]
        return [*plain.chats, *written.chats, *apart.chats], FlatIds.joined(encoded)

    def _is_plain(self, content: str) -> bool:
        return self._tokenizer.template.is_plain(content)

    def _ids_of_ends(self, turns: Sequence[Written]) -> list[int | None]:
        return [None if turn.end is None else self._tokenizer.id_of(turn.end) for turn in turns]

    def _enter(self, chat: Document, text: str | None, typed: bool, ledger: Ledger) -> None:
        """Enter what became of the turns of a chat.

        Its rendered `text` is None where it has every answer word for word; `typed` is whether it has control-token
        text that is text.
        """
        template, messages = self._tokenizer.template, chat.messages or ()
        nothing = ([False] * len(messages), [0] * len(messages), [False] * len(messages))
        contents, calls, thoughts = template.left_out(messages, text) if text is not None else nothing
        for i, message in enumerate(messages):
            if self._roles == "assistant" and message["role"] != "assistant":
                ledger[TURNS, NOT_ASSISTANTS] += 1
                continue
            ledger[TURNS, BY_TEMPLATE if contents[i] else COUNTED] += 1
            if made := len(message.get("tool_calls", ())):
                ledger[CALLS, BY_TEMPLATE] += calls[i]
                ledger[CALLS, COUNTED] += made - calls[i]
            if message["role"] == "assistant" and has_thought(message):
                ledger[THOUGHTS, BY_TEMPLATE if thoughts[i] else COUNTED] += 1
            if (typed or message["role"] == "assistant") and any(map(template.holds_control, texts_of([message]))):
                ledger[CONTROL, AS_TEXT if template.holds_typed(message) else COUNTED] += 1
        if chat.tools:
            names = [str(tool.get("function", tool).get("name", "")) for tool in chat.tools]
            lost = sum(name not in (text or "") for name in names)
            if self._roles == "assistant":
                ledger[TOOLS, NOT_ASSISTANTS] += len(names)
            else:
                ledger[TOOLS, BY_TEMPLATE] += lost
                ledger[TOOLS, COUNTED] += len(names) - lost

    def _checked_ids(self, documents: Sequence[Document], refuse: Refuse) -> tuple[list[Document], FlatIds]:
        kept = []
        for document in documents:
            assert document.ids is not None
            highest = int(document.ids.max(initial=0))
            if highest >= self._tokenizer.vocab_size or document.ids.min(initial=0) < 0:
                refuse(document, f"token {highest:,} is not in the vocabulary of {self._tokenizer.name}")
            else:
                kept.append(document)
        return kept, FlatIds.of([document.ids for document in kept if document.ids is not None])


class _Turns:
    """Turns of chats: for each what is to be encoded and the id that ends it, -1 for none."""

    def __init__(self) -> None:
        self.chats: list[Document] = []
        self.turns: list[Any] = []
        self._ends: list[int] = []
        self._starts = [0]

    def add(self, chat: Document, turns: Sequence[Any], ends: Sequence[int | None]) -> None:
        self.chats.append(chat)
        self.turns += turns
        self._ends += [-1 if end is None else end for end in ends]
        self._starts.append(len(self.turns))

    def ended(self, flat: FlatIds) -> FlatIds:
        """The ids of each chat from those of each turn."""
        ended = _with_ends(flat, np.array(self._ends, dtype=np.int64))
        return FlatIds(ended.ids, ended.offsets[self._starts])


def _with_ends(flat: FlatIds, ends: np.ndarray) -> FlatIds:
    """`flat` with one more id at the end of each text, where `ends` (int64[texts]) is not negative."""
    has_end = ends >= 0
    offsets = flat.offsets + np.concatenate([[0], np.cumsum(has_end)])
    at_end = np.zeros(offsets[-1], dtype=bool)
    at_end[offsets[1:][has_end] - 1] = True
    ids = np.empty(offsets[-1], dtype=np.int64)
    ids[at_end] = ends[has_end]
    ids[~at_end] = flat.ids
    return FlatIds(ids, offsets)
