"""Records (of JSON, tables, data sets) to documents: which field holds the text or chat, and what chats look like."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import orjson

from vocabtrim_core.corpora.documents import Document, ReadingOptions
from vocabtrim_core.corpora.encodings import INVALID, normalise_newlines

# In the order in which they are looked for; a chat wins, as its markup is a part of what a model is served.
CHAT_FIELDS = ("messages", "conversations", "conversation")
TEXT_FIELDS = ("text", "content", "body", "code", "document", "article", "raw_content", "markdown")
PAIRS = (
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
# What stands beside a chat: ShareGPT's system prompt, Alpaca's input to the instruction.
_SYSTEM, _INSTRUCTION, _INPUT = "system", "instruction", "input"
KNOWN_FIELDS = frozenset((*CHAT_FIELDS, *TEXT_FIELDS, *(name for pair in PAIRS for name in pair), _SYSTEM, _INPUT))

_SPEAKERS = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "bot", "chatgpt", "bing", "bard", "function_call"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "function", "function_response", "observation"), "tool"),
}
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
        wanted |= {name.split(".")[0] for name in wanted} | {_SYSTEM}
        found = [name for name in names if name in wanted]
        if not set(found) - {_SYSTEM}:
            raise ValueError(_no_field(options.field, names))
        return found
    found = [name for name in names if name.lower() in KNOWN_FIELDS]
    if _known(dict.fromkeys(found, True)) is None:
        raise ValueError(_no_known_field(names))
    return found


def _detected(record: Mapping, line: int, options: ReadingOptions) -> Document:
    known = _known(record)
    if known is None:
        raise ValueError(_no_known_field(record))
    fields, names = known
    if len(names) == 2:
        return _pair(fields, names[0], names[1], line, options)
    name = names[0]
    if name in CHAT_FIELDS:
        return _chat(fields, fields[name], name, line, options)
    return Document(_text(fields[name], f"`{name}`", options), None, line)


def _known(record: Mapping) -> tuple[Mapping, tuple[str, ...]] | None:
    """The field, or the two fields, to take, and the record with these names: lower-cased if only that has them."""
    for lower in (False, True):
        fields = {str(name).lower(): value for name, value in record.items()} if lower else record
        for name in CHAT_FIELDS:
            if fields.get(name) not in (None, ""):
                return fields, (name,)
        for name in TEXT_FIELDS:
            if fields.get(name) is not None:
                return fields, (name,)
        for pair in PAIRS:
            if all(fields.get(name) is not None for name in pair):
                return fields, pair
    return None


def _chosen(record: Mapping, line: int, options: ReadingOptions) -> Document:
    name = str(options.field)
    value = _find(record, name)
    if value is None and "+" in name:
        first, _, second = name.partition("+")
        return _pair(record, first, second, line, options)
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


def _pair(record: Mapping, first: str, second: str, line: int, options: ReadingOptions) -> Document:
    """A user's and an assistant's turn; either may be a list of messages already."""
    asked, answered = _find(record, first), _find(record, second)
    if asked is None or answered is None:
        raise ValueError(_no_field(f"{first}+{second}", record))
    turns: list[object] = []
    for name, value, role in ((first, asked, "user"), (second, answered, "assistant")):
        if isinstance(value, list):
            turns += value
            continue
        content = _text(value, f"`{name}`", options)
        if name == _INSTRUCTION and isinstance(given := record.get(_INPUT), str) and given.strip():
            content += "\n\n" + given
        turns.append({"role": role, "content": content})
    return _chat(record, turns, f"{first}+{second}", line, options)


def _chat(record: Mapping, turns: object, name: str, line: int, options: ReadingOptions) -> Document:
    if isinstance(turns, str) and turns.startswith("["):
        # A chat in a column of a CSV file.
        try:
            turns = orjson.loads(turns)
        except orjson.JSONDecodeError:
            raise ValueError(f"`{name}` is not valid JSON") from None
    if not isinstance(turns, list) or not turns:
        raise ValueError(f"`{name}` is not a list of messages")
    messages = [_message(turn, position, options) for position, turn in enumerate(turns, start=1)]
    system = record.get(_SYSTEM)
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": _text(system, "`system`", options)})
    if not any(message["content"].strip() for message in messages):
        raise ValueError("no message has any text")
    if options.roles == "assistant" and not any(message["role"] == "assistant" for message in messages):
        raise ValueError("no message is the assistant's")
    return Document(None, tuple(messages), line)


def _message(turn: object, position: int, options: ReadingOptions) -> dict[str, str]:
    """One message, of OpenAI's form or of ShareGPT's."""
    if not isinstance(turn, Mapping):
        raise ValueError(f"message {position} is not an object with `role` and `content` (or `from` and `value`)")
    match turn:
        case {"role": role, "content": content}:
            role = _text(role, f"the role of message {position}", options)
        case {"from": speaker, "value": content}:
            role = _SPEAKERS.get(str(speaker).lower(), "")
            if not role:
                raise ValueError(f"message {position} is from an unknown speaker (“{str(speaker)[:40]}”)")
        case _:
            raise ValueError(f"message {position} is not an object with `role` and `content` (or `from` and `value`)")
    calls = turn.get("tool_calls")
    if not content and isinstance(calls, list) and calls:
        content = _calls_text(calls)
    elif isinstance(content, list):
        content = _parts_text(content, position)
    return {"role": role, "content": _text(content, f"the content of message {position}", options, may_be_blank=True)}


def _parts_text(parts: list, position: int) -> str:
    """The text of a content in parts. Pictures and sounds have no tokens of the vocabulary, so they are left out."""
    texts = []
    for part in parts:
        match part:
            case {"text": str(text)} | str(text):
                texts.append(text)
            case {"type": str()}:
                pass
            case _:
                raise ValueError(f"the content of message {position} is not text, nor a list of parts")
    return "".join(texts)


def _calls_text(calls: list) -> str:
    """Tool calls as most models write them: a line of JSON each, with a name and arguments."""
    lines = []
    for call in calls:
        call = call.get("function", call) if isinstance(call, Mapping) else call
        match call:
            case {"name": str(name), "arguments": arguments}:
                # OpenAI gives the arguments as text that is JSON already.
                text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
                lines.append(f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {text}}}')
            case _:
                lines.append(json.dumps(call, ensure_ascii=False, default=str))
    return "\n".join(lines)


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
    texts += [text for message in document.messages or () for text in message.values()]
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
