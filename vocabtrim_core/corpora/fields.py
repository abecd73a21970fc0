"""Records (of JSON, tables, data sets) to documents: which field holds the text or chat."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from vocabtrim_core.corpora.documents import Document, ReadingOptions
from vocabtrim_core.corpora.encodings import INVALID, normalise_newlines
from vocabtrim_core.corpora.messages import ANSWERS, REJECTED, ROLES, Note, normalised, texts_of, tool_definitions

# In the order in which they are looked for; a chat wins, as its markup is a part of what a model is served.
CHAT_FIELDS = ("messages", "conversations", "conversation", "data")
TEXT_FIELDS = ("text", "content", "body", "code", "document", "article", "raw_content", "markdown")
PAIRS = (
    ("prompt", "chosen"),
    ("question", "chosen"),
    ("instruction", "chosen"),
    ("input", "preferred_output"),
    ("prompt", "response"),
    ("prompt", "completion"),
    ("instruction", "output"),
    ("instruction", "response"),
    ("question", "answer"),
    ("question", "response"),
    ("query", "response"),
    ("query", "answer"),
    ("problem", "solution"),
    ("input", "output"),
)
# Of a pair of answers the one that was preferred is taken; where it is alone, it has the prompt in it.
_CHOSEN = "chosen"
_REJECTED = ("rejected", "non_preferred_output")
# What may be beside a chat: ShareGPT's and Anthropic's system prompt, Alpaca's input to the instruction and earlier
# turns, the tools that a model may call.
_SYSTEM, _INSTRUCTION, _INPUT, _HISTORY = "system", "instruction", "input", "history"
_TOOLS = ("tools", "functions")
_BESIDE = frozenset((_SYSTEM, _INPUT, _HISTORY, _CHOSEN, *_REJECTED, *_TOOLS))
# Requests to a server hold the chat one level deeper.
_WRAPPERS = ("body", "request")
KNOWN_FIELDS = frozenset((*CHAT_FIELDS, *TEXT_FIELDS, *(name for pair in PAIRS for name in pair), *_BESIDE, *_WRAPPERS))

_SHOWN_FIELDS = 8


def parse_record(record: object, line: int, options: ReadingOptions, check_unicode: bool = False) -> Document:
    """The document in one record; ValueError, with the reason as its text, where there is none.

    A mapping, or a bare string. `check_unicode` is for records whose strings may hold half a surrogate pair.
    """
    if isinstance(record, str):
        document = Document(_text(record, "the text", options), None, line)
    elif isinstance(record, Mapping):
        document = _chosen(record, line, options) if options.field else _detected(record, line, options)
    else:
        raise ValueError("not a JSON object")
    if check_unicode:
        _check_unicode(document)
    return document


def is_record(record: Mapping, options: ReadingOptions) -> bool:
    """Whether there is a field that `parse_record` would take."""
    return _find(record, options.field) is not None if options.field else _known(record) is not None


def usable_columns(names: Iterable[str], options: ReadingOptions) -> list[str]:
    """The columns of a table that `parse_record` may look at. ValueError, with a reason, where there is none."""
    names = list(names)
    if options.field:
        wanted = {options.field, *options.field.split("+")}
        wanted |= {name.split(".")[0] for name in wanted}
        if not wanted & set(names):
            raise ValueError(_no_field(options.field, names))
        return [name for name in names if name in wanted | _BESIDE]
    found = [name for name in names if name.lower() in KNOWN_FIELDS]
    lower = {name.lower() for name in found}
    if not lower & {*CHAT_FIELDS, *TEXT_FIELDS, *_WRAPPERS, _CHOSEN} and not any(lower.issuperset(p) for p in PAIRS):
        raise ValueError(_no_known_field(names))
    return found


def _detected(record: Mapping, line: int, options: ReadingOptions) -> Document:
    known = _known(record)
    if known is None:
        raise ValueError(_no_known_field(record))
    fields, names = known
    if len(names) == 2:
        return _pair(fields, fields[names[0]], fields[names[1]], names, line, options)
    name = names[0]
    if name in CHAT_FIELDS or (name == _CHOSEN and isinstance(fields[name], list)):
        return _chat(fields, fields[name], name, line, options)
    return Document(_text(fields[name], f"`{name}`", options), None, line, notes=_rejected(fields, []))


def _known(record: Mapping) -> tuple[Mapping, tuple[str, ...]] | None:
    """The field, or the two fields, to take, and the record with these names: lower-cased if only that has them."""
    for lower in (False, True):
        fields = {str(name).lower(): value for name, value in record.items()} if lower else record
        for name in CHAT_FIELDS:
            if fields.get(name) not in (None, "") and (name != "data" or _is_dialogue(fields[name])):
                return fields, (name,)
        for name in _WRAPPERS:
            inner = fields.get(name)
            if isinstance(inner, Mapping) and any(inner.get(chat) for chat in CHAT_FIELDS):
                return _known(inner)
        for name in TEXT_FIELDS:
            if fields.get(name) is not None:
                return fields, (name,)
        for pair in PAIRS:
            if all(fields.get(name) is not None for name in pair):
                return fields, pair
        if fields.get(_CHOSEN) is not None:
            return fields, (_CHOSEN,)
    return None


def _is_dialogue(value: object) -> bool:
    """Whether it is UltraChat's `data`: what two sides say in turn, as strings."""
    return isinstance(value, list) and len(value) > 1 and all(isinstance(said, str) for said in value)


def _chosen(record: Mapping, line: int, options: ReadingOptions) -> Document:
    name = str(options.field)
    value = _find(record, name)
    if value is None and "+" in name:
        first, _, second = name.partition("+")
        asked, answered = _find(record, first), _find(record, second)
        if asked is None or answered is None:
            raise ValueError(_no_field(name, record))
        return _pair(record, asked, answered, (first, second), line, options)
    if value is None:
        raise ValueError(_no_field(name, record))
    if isinstance(value, list) or name in CHAT_FIELDS:
        return _chat(record, value, name, line, options)
    return Document(_text(value, f"`{name}`", options), None, line)


def _find(record: Mapping, name: str) -> object:
    """The field `name`, or the one that a path with dots leads to, or None."""
    value: object = record.get(name)
    if value is not None or "." not in name:
        return value
    value = record
    for part in name.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value


def _pair(
    record: Mapping, asked: object, answered: object, names: tuple[str, ...], line: int, options: ReadingOptions
) -> Document:
    """A user's and an assistant's turn; either may be a list of messages already, or an object that has one."""
    answers = _turns(answered, f"`{names[1]}`", "assistant", options)
    if (
        len(answers) > 1
        and isinstance(first := answers[0], Mapping)
        and ROLES.get(str(first.get("role"))) != "assistant"
    ):
        # The answer repeats the prompt.
        return _chat(record, answers, names[1], line, options)
    asks = _turns(asked, f"`{names[0]}`", "user", options)
    if names[0] == _INSTRUCTION and isinstance(given := record.get(_INPUT), str) and given.strip():
        content = "\n\n".join(text for text in (str(asked), given) if text.strip())
        asks = [{"role": "user", "content": content}]
    history = record.get(_HISTORY)
    earlier = history if isinstance(history, list) else []
    return _chat(record, [*earlier, *asks, *answers], "+".join(names), line, options)


def _turns(value: object, what: str, role: str, options: ReadingOptions) -> list:
    """The turns of one side. A prompt may be empty: what follows is then what a model says unasked."""
    if isinstance(value, Mapping):
        inner = next((value[name] for name in CHAT_FIELDS if isinstance(value.get(name), list)), None)
        return inner if inner is not None else [value]
    if isinstance(value, list):
        return value
    return [{"role": role, "content": _text(value, what, options, may_be_blank=role == "user")}]


def _chat(record: Mapping, turns: object, name: str, line: int, options: ReadingOptions) -> Document:
    if isinstance(turns, str) and turns.startswith("["):
        # A chat in a column of a CSV file.
        try:
            turns = orjson.loads(turns)
        except orjson.JSONDecodeError:
            raise ValueError(f"`{name}` is not valid JSON") from None
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"`{name}` is not a list of messages")
    notes: list[Note] = []
    messages = normalised(turns, notes)
    preferred = record.get(_CHOSEN)
    if preferred is not None and name in CHAT_FIELDS and messages[-1]["role"] != "assistant":
        messages += normalised(_turns(preferred, f"`{_CHOSEN}`", "assistant", options), notes)
    system = record.get(_SYSTEM)
    if system and messages[0]["role"] != "system":
        messages = [*normalised([{"role": "system", "content": system}], notes), *messages]
        if not messages[0]["content"].strip():
            del messages[0]
    for message in messages:
        for key in ("content", "reasoning_content"):
            if key in message:
                message[key] = _text(message[key], "a message", options, may_be_blank=True)
    if not any(message["content"].strip() or len(message) > 2 for message in messages):
        raise ValueError("no message has any text")
    if options.roles == "assistant" and not any(message["role"] == "assistant" for message in messages):
        raise ValueError("no message is the assistant's")
    tools = next((tools for key in _TOOLS if (tools := tool_definitions(record.get(key)))), None)
    return Document(None, tuple(messages), line, tools=tuple(tools) if tools else None, notes=_rejected(record, notes))


def _rejected(record: Mapping, notes: list[Note]) -> tuple[Note, ...]:
    """`notes`, and one for an answer that was not preferred."""
    return (*notes, Note(ANSWERS, REJECTED)) if any(record.get(name) for name in _REJECTED) else tuple(notes)


def _text(value: object, what: str, options: ReadingOptions, may_be_blank: bool = False) -> str:
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{what} is not valid UTF-8") from None
    if not isinstance(value, str):
        raise ValueError(f"{what} is not a string")
    if not may_be_blank and (not value or value.isspace()):
        raise ValueError(f"{what} is empty")
    return normalise_newlines(value) if options.newlines == "lf" else value


def _check_unicode(document: Document) -> None:
    """ValueError for what no tokenizer can encode: JSON can spell half a surrogate pair as \\ud83d."""
    texts = [document.text] if document.text is not None else []
    texts += texts_of(document.messages or ())
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            what = "bytes that are not valid UTF-8" if INVALID in text else "half a surrogate pair, which is not text"
            raise ValueError(f"the record has {what}") from None


def _no_field(field: str, names: Iterable[object]) -> str:
    return f"no field `{field}`; it has {_listed(names)}"


def _no_known_field(names: Iterable[object]) -> str:
    return f"no text or chat in a field that is known to hold one; it has {_listed(names)}; choose one with text"


def _listed(names: Iterable[object]) -> str:
    shown = [f"`{str(name)[:40]}`" for name in names]
    more = f" and {len(shown) - _SHOWN_FIELDS} more" if len(shown) > _SHOWN_FIELDS else ""
    return ", ".join(shown[:_SHOWN_FIELDS]) + more if shown else "none"
