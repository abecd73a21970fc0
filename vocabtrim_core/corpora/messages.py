"""Chats: messages of any common form become the ones that chat templates take.

A message here has `role` ("system", "user", "assistant" or "tool") and `content` (a string, empty where there is none);
an assistant's may have `reasoning_content` (a string) and `tool_calls` (OpenAI's form; `arguments` an object, or the
text that the record has), a tool's `name` and `tool_call_id`. Nothing is dropped without a note: a pair of what was
left out and why, from the fixed sets below.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import orjson

Message = dict[str, Any]

# What a note is about.
PARTS, CALLS, THOUGHTS, NULLS, ANSWERS = "content parts", "tool calls", "thoughts", "null arguments", "answers"
# And why it was left out.
NO_TEXT = "not text"
NO_NAME = "no name of a tool"
OTHERS_THOUGHT = "not in an assistant's turn"
PADDING = "padding of a table"
REJECTED = "rejected ones"
ENCRYPTED = "encrypted"


class Note(NamedTuple):
    """Something that a record has and its messages do not."""

    item: str
    reason: str


ROLES = {
    **dict.fromkeys(("human", "user", "prompter", "instruction", "question"), "user"),
    **dict.fromkeys(
        ("gpt", "assistant", "model", "bot", "chatbot", "ai", "chatgpt", "bing", "bard", "claude", "llm", "answer"),
        "assistant",
    ),
    **dict.fromkeys(("function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(
        ("tool", "function", "function_response", "tool_response", "tool_result", "observation", "ipython"), "tool"
    ),
}
_CALL_ROLES = ("function_call", "tool_call")  # of ShareGPT: a turn that is a call as JSON text
_ROLE_KEYS = ("role", "from", "speaker")
_CONTENT_KEYS = ("content", "value", "text")
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
# A turn of both sides, as XTuner and Baize write it.
_BOTH_SIDES = (("input", "output"), ("human", "assistant"), ("user", "assistant"), ("prompt", "response"))
_TEXT_PARTS = ("text", "refusal", "input_text", "output_text")
_CALL_PARTS = ("tool_use", "tool_call", "function_call")
_RESULT_PARTS = ("tool_result", "function_call_output")
_MAX_DEPTH = 100


def normalised(turns: list, notes: list[Note]) -> list[Message]:
    """The messages of a chat; what they leave out is added to `notes`. ValueError, with a reason, where a turn is none.

    A turn is a message of OpenAI's, Anthropic's or ShareGPT's form; an object or a list with both sides; or, where all
    are, a string, the user's first.
    """
    if all(isinstance(turn, str) for turn in turns):
        return [_plain_turn(index, turn) for index, turn in enumerate(turns)]
    messages: list[Message] = []
    for position, turn in enumerate(turns, start=1):
        messages += _turn(turn, f"message {position}", notes)
    return messages


def texts_of(messages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every string of the messages, calls as JSON."""
    texts: list[str] = []
    for message in messages:
        texts += [value for value in message.values() if isinstance(value, str)]
        if "tool_calls" in message:
            texts.append(calls_json(message["tool_calls"]))
    return texts


def calls_json(value: object) -> str:
    """Calls, or definitions of tools, as one line of JSON that depends on nothing but their content."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def tool_definitions(value: object) -> list[dict] | None:
    """The tools that a record defines, as a list of objects; None where there is none of that form."""
    given = _json(value) if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(tool, Mapping) for tool in given):
        return None
    tools = [_without_nulls(tool, [], 0) for tool in given if tool]
    # Functions as OpenAI's API had them first are named at the top.
    return [tool if "function" in tool or "type" in tool else {"type": "function", "function": tool} for tool in tools]


def _plain_turn(index: int, text: str) -> Message:
    return {"role": "assistant" if index % 2 else "user", "content": text}


def _turn(turn: object, where: str, notes: list[Note]) -> list[Message]:
    if isinstance(turn, list) and len(turn) == 2 and all(isinstance(side, str) for side in turn):
        return [_plain_turn(index, side) for index, side in enumerate(turn)]
    if not isinstance(turn, Mapping):
        raise ValueError(f"{where} is not an object with `role` and `content` (or `from` and `value`)")
    match turn:
        # Most turns; the rest takes several times as long.
        case {"role": "user" | "assistant" | "system" as known, "content": str(text)} if len(turn) == 2:
            return [{"role": known, "content": text}]
    said = next((turn[key] for key in _ROLE_KEYS if turn.get(key) is not None), None)
    if said is None:
        return _both_sides(turn, where)
    role = ROLES.get(str(said).strip().lower())
    if role is None:
        raise ValueError(f"{where} is from an unknown speaker (“{str(said)[:40]}”)")
    content = next((turn[key] for key in _CONTENT_KEYS if turn.get(key) is not None), None)
    body = _Body(role, where, notes)
    reasoning = next((turn[key] for key in _REASONING_KEYS if turn.get(key)), None)
    if reasoning is not None:
        body.add_thought(reasoning)
    if str(said).strip().lower() in _CALL_ROLES and isinstance(content, str):
        called = _json(content)
        body.add_calls(called if isinstance(called, list) else [called]) if called else body.texts.append(content)
    else:
        body.add_content(content)
    if not body.texts and isinstance(turn.get("refusal"), str):
        body.texts.append(turn["refusal"])
    calls = turn.get("tool_calls")
    calls = _json(calls) if isinstance(calls, str) else calls
    if not calls and turn.get("function_call"):
        calls = turn["function_call"]
        calls = _json(calls) if isinstance(calls, str) else calls
    if calls:
        body.add_calls(calls if isinstance(calls, list) else [calls])
    return body.messages(turn)


def _both_sides(turn: Mapping, where: str) -> list[Message]:
    for asked, answered in _BOTH_SIDES:
        if isinstance(turn.get(asked), str) and isinstance(turn.get(answered), str):
            messages = [{"role": "user", "content": turn[asked]}, {"role": "assistant", "content": turn[answered]}]
            system = turn.get("system")
            before = [{"role": "system", "content": system}] if isinstance(system, str) and system else []
            return [*before, *messages]
    raise ValueError(f"{where} is not an object with `role` and `content` (or `from` and `value`)")


class _Body:
    """What one turn holds, gathered from its fields and the parts of its content."""

    def __init__(self, role: str, where: str, notes: list[Note]) -> None:
        self.texts: list[str] = []
        self._role, self._where, self._notes = role, where, notes
        self._thoughts: list[str] = []
        self._calls: list[dict] = []
        self._results: list[Message] = []

    def add_content(self, content: object) -> None:
        match content:
            case None:
                pass
            case str():
                self.texts.append(content)
            case bytes():
                self.texts.append(_decoded(content, self._where))
            case [*parts]:
                if self._role == "tool" and not all(_is_part(part) for part in parts):
                    self.texts.append(_result_json(parts))
                else:
                    for part in parts:
                        self._add_part(part)
            case {"parts": [*parts]}:
                for part in parts:
                    self._add_part(part)
            case {"text": str(text)}:
                self.texts.append(text)
            case _ if self._role == "tool":
                self.texts.append(_result_json(content))
            case _:
                raise ValueError(f"the content of {self._where} is not a string")

    def _add_part(self, part: Any) -> None:
        match part:
            case str(text) | {"type": "text" | "input_text" | "output_text", "text": str(text)}:
                self.texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                self.texts.append(text)
            case {"type": "thinking" | "reasoning"}:
                self.add_thought(next((part[key] for key in ("thinking", "reasoning", "text") if part.get(key)), None))
            case {"type": "redacted_thinking"}:
                self._notes.append(Note(THOUGHTS, ENCRYPTED))
            case {"type": str(kind)} if kind in _CALL_PARTS:
                self.add_calls([part])
            case {"type": str(kind)} if kind in _RESULT_PARTS:
                self._add_result(part)
            case {"type": str(kind)} if kind not in _TEXT_PARTS:
                self._notes.append(Note(PARTS, NO_TEXT))
            case {"text": str(text)}:
                self.texts.append(text)
            # A table pads: a part without its text is none.
            case {"type": str()} | None:
                self._notes.append(Note(PARTS, NO_TEXT))
            case _:
                raise ValueError(f"the content of {self._where} is not text, nor a list of parts")

    def _add_result(self, part: Mapping) -> None:
        inner = _Body("tool", self._where, self._notes)
        inner.add_content(part.get("content") if part.get("content") is not None else part.get("output"))
        identity = {"tool_call_id": part.get("tool_use_id") or part.get("call_id")}
        self._results += inner.messages(identity)

    def add_thought(self, thought: object) -> None:
        if isinstance(thought, list):
            thought = "".join(str(_thought_text(part)) for part in thought)
        if not isinstance(thought, str) or not thought:
            self._notes.append(Note(THOUGHTS, NO_TEXT))
        elif self._role == "assistant":
            self._thoughts.append(thought)
        else:
            self._notes.append(Note(THOUGHTS, OTHERS_THOUGHT))

    def add_calls(self, calls: list) -> None:
        for call in calls:
            made = _call(call, self._notes)
            if made is None:
                self._notes.append(Note(CALLS, NO_NAME))
            elif self._role == "assistant":
                self._calls.append(made)
            else:
                self._notes.append(Note(CALLS, OTHERS_THOUGHT))

    def messages(self, turn: Mapping) -> list[Message]:
        """The results of tools that the turn holds, then the turn itself where it holds anything else."""
        message: Message = {"role": self._role, "content": "".join(self.texts)}
        if self._thoughts:
            message["reasoning_content"] = "\n".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = self._calls
        if self._role == "tool":
            message |= {key: turn[key] for key in ("name", "tool_call_id") if isinstance(turn.get(key), str)}
        if self._results and not (self.texts or self._thoughts or self._calls):
            return self._results
        return [*self._results, message]


def _call(call: object, notes: list[Note]) -> dict | None:
    """A call in OpenAI's form; None where it names no tool."""
    call = _json(call) if isinstance(call, str) else call
    if not isinstance(call, Mapping):
        return None
    inner = next((call[key] for key in ("function", "custom") if isinstance(call.get(key), Mapping)), call)
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        return None
    given: object = next((inner[key] for key in ("arguments", "input", "parameters") if inner.get(key) is not None), {})
    made: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": _arguments(given, notes)}}
    identity = call.get("id") or call.get("call_id")
    return {"id": identity, **made} if isinstance(identity, str) else made


def _arguments(given: Any, notes: list[Note]) -> object:
    """Arguments as they are in text; in an object without the nulls, which tables pad other tools' keys with."""
    if isinstance(given, str):
        return given
    # An Arrow map comes as pairs.
    if isinstance(given, list) and given and all(isinstance(pair, tuple) and len(pair) == 2 for pair in given):
        return _without_nulls({str(key): value for key, value in given}, notes, 0)
    return _without_nulls(given, notes, 0)


def _without_nulls(value: object, notes: list[Note], depth: int) -> Any:
    """`value` in plain JSON types, its objects without the keys whose value is null."""
    if depth > _MAX_DEPTH:
        raise ValueError("a tool call is nested too deep")
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            kept = {str(key): item for key, item in value.items() if item is not None}
            notes += [Note(NULLS, PADDING)] * (len(value) - len(kept))
            return {key: _without_nulls(item, notes, depth + 1) for key, item in kept.items()}
        case list() | tuple():
            return [_without_nulls(item, notes, depth + 1) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
    return str(value)


def _is_part(part: object) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and isinstance(part.get("type"), str))


def _thought_text(part: object) -> object:
    if not isinstance(part, Mapping):
        return part if isinstance(part, str) else ""
    return next((part[key] for key in ("text", "thinking", "content") if isinstance(part.get(key), str)), "")


def _result_json(value: object) -> str:
    """A tool's result that is no text, as JSON."""
    return json.dumps(_without_nulls(value, [], 0), ensure_ascii=False)


def _json(text: str) -> Any:
    """The object or array that `text` spells in JSON; None where it spells none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict | list) else None


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the content of {where} is not valid UTF-8") from None
