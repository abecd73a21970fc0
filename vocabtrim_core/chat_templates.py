"""Chat templates: what a tokenizer's template makes of a chat, and which part of that the model wrote.

The template decides: what it drops or strips is not there. Two rules say what characters of a control token are. The
template's own are the token. Within a message they are text, except in an assistant's turn, where a token that models
write inside of a turn (`<think>`, `<tool_call>`) is that token: what frames turns (`<|im_end|>`, BOS, headers) stays
text there too, since a model that wrote it would have ended its turn.
"""

from __future__ import annotations

import bisect
import datetime
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vocabtrim_core import template_trial
from vocabtrim_core.errors import TokenizerError
from vocabtrim_core.sentences import first_line
from vocabtrim_core.tokenizer_definition import TokenizerDefinition

Message = Mapping[str, Any]

# Templates that print today's date print this one, so that a chat has the same tokens on every day. It is the date that
# Llama 3.1's template falls back to.
FIXED_DATE = datetime.datetime(2024, 7, 26)
# Characters that no text may use ("noncharacters"), to mark places in a message.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


@dataclass(frozen=True)
class Rendering:
    """A chat in the template's words. `typed` are places in `text` (start, end; ascending) where the characters of a
    control token are text."""

    text: str
    typed: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Written:
    """What a model wrote in one turn, as the template has it, and the text of the control token that ends the turn."""

    body: Rendering
    end: str | None


@dataclass(frozen=True)
class Frame:
    """What a template puts around turns, found by rendering stand-ins.

    `header` goes before every assistant's turn; `own` are texts after it that the template may add (an empty thought,
    or what a generation prompt ends with), which are not the model's. `tokens` are the control tokens that frame turns,
    `ends` those of them that end an assistant's.
    """

    header: str
    own: tuple[str, ...]
    tokens: frozenset[str]
    ends: frozenset[str]


class ChatTemplate:
    """The chat template of a tokenizer, with the texts of its control tokens and of those that end a text (`eos`)."""

    def __init__(self, name: str, definition: TokenizerDefinition, controls: Sequence[str], eos: Sequence[str]) -> None:
        self._name = name
        self._definition = definition
        self._controls = tuple(controls)
        self._eos = tuple(eos)

    @property
    def prints_date(self) -> bool:
        """Whether the template asks for the time."""
        return "strftime_now" in json.dumps(self._definition.chat_template)

    def render(
        self, messages: Sequence[Message], tools: Sequence[dict] | None = None, add_generation_prompt: bool = False
    ) -> str:
        """The chat in the template's words. TokenizerError where it refuses the messages, or a role holds a control
        token."""
        return self._render(messages, tools, add_generation_prompt)[0]

    def rendering(
        self, messages: Sequence[Message], tools: Sequence[dict] | None = None, add_generation_prompt: bool = False
    ) -> Rendering:
        """The chat, and where it has control-token text that is text. TokenizerError as `render`, and where such text
        cannot be told from the template's."""
        text = self.render(messages, tools, add_generation_prompt)
        return Rendering(text, self._typed(messages, tools, text, add_generation_prompt))

    def written(self, messages: Sequence[Message], tools: Sequence[dict] | None = None) -> tuple[str, list[Written]]:
        """The chat in the template's words, and what the model wrote in each of the assistant's turns that it has.

        Found by the template's generation marks where it has them, else by the header that it puts before each turn of
        an assistant, else by rendering the chat up to each turn. TokenizerError as `rendering`, and where no way works.
        """
        text, marked = self._render(messages, tools)
        chat = Rendering(text, self._typed(messages, tools, text))
        frame = self.frame
        if marked:
            return text, [self._until_frame(chat, start, stop) for start, stop in marked]
        if any(token in frame.header for token in frame.tokens):
            starts = [at + len(frame.header) for at in _occurrences(text, frame.header) if not _within(at, chat.typed)]
            if len(starts) <= sum(message["role"] == "assistant" for message in messages):
                return text, [self._until_frame(chat, self._past_own(text, start), len(text)) for start in starts]
        return text, [
            self._turn_between(messages, tools, chat, i)
            for i, message in enumerate(messages)
            if message["role"] == "assistant"
        ]

    def pieces(self, rendering: Rendering) -> list[tuple[str, bool]]:
        """`rendering` in pieces to encode apart, each with whether control-token text in it is text."""
        if not rendering.typed:
            return [(rendering.text, False)]
        pieces: list[tuple[str, bool]] = []
        start = done = 0
        cuts = [match.span() for match in self._pattern.finditer(rendering.text)]
        for a, b in [*(cut for cut in cuts if not _within(cut[0], rendering.typed)), (len(rendering.text),) * 2]:
            # Between two control tokens a tokenizer encodes the text by itself.
            if _first_from(start, rendering.typed) < a:
                pieces += [(rendering.text[done:start], False), (rendering.text[start:a], True)]
                done = a
            start = b
        pieces.append((rendering.text[done:], False))
        return [piece for piece in pieces if piece[0]]

    def holds_typed(self, message: Message) -> bool:
        """Whether a message holds control-token text that is text."""
        if message["role"] == "assistant":
            return any(token in text for text in _strings(message) for token in self.frame.tokens)
        return any(self.holds_control(text) for text in _strings(message))

    def holds_control(self, text: str) -> bool:
        """Whether the characters of a control token occur in `text`."""
        for start, controls in self._by_start.items():
            at = text.find(start)
            while at >= 0:
                if text.startswith(controls, at):
                    return True
                at = text.find(start, at + 1)
        return False

    def is_plain(self, content: str) -> bool:
        """Whether every template here has this content word for word: no space at its ends, no control token, nothing
        that the template looks for."""
        return (
            content.strip() == content
            and not self.holds_control(content)
            and not any(tag in content for tag in self._looked_for)
        )

    def left_out(self, messages: Sequence[Message], text: str) -> tuple[list[bool], list[int], list[bool]]:
        """What of `messages` is not in the rendered `text`: for each message whether its content is missing, how many
        of its calls are, and whether its thought is."""
        at = 0
        contents, calls, thoughts = [], [], []
        for message in messages:
            thought, said = _split_thought(message)
            thought_at = text.find(thought.strip(), at)
            said_at = text.find(said.strip(), at)
            contents.append(said_at < 0)
            thoughts.append(thought_at < 0)
            made = message.get("tool_calls") or ()
            kept = self._renders_calls
            calls.append(sum(not kept or text.find(call["function"]["name"], at) < 0 for call in made))
            if said_at >= 0:
                at = said_at + len(said.strip())
        return contents, calls, thoughts

    @cached_property
    def frame(self) -> Frame:
        """What the template puts around turns."""
        marks = [_stand_in(i) for i in range(4)]
        roles = ("user", "assistant", "user", "assistant")
        chat = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
        named = {str(text) for text in self._definition.special_tokens.values() if isinstance(text, str)} | {*self._eos}
        try:
            parts = self._around(chat, marks)
            asked = self.render(chat[:1])
            prompt = self.render(chat[:1], add_generation_prompt=True)
        except TokenizerError:
            return Frame("", (), frozenset(named & set(self._controls)), frozenset(self._eos))
        prompt = prompt[len(asked) :] if prompt.startswith(asked) else ""
        header = prompt
        # The longest start of the generation prompt that goes before both turns.
        while header and not all(header in part for part in (parts[1], parts[3])):
            header = header[:-1]
        tails = [part.rpartition(header)[2] if header else "" for part in (parts[1], parts[3])]
        own = {text for text in (*tails, prompt[len(header) :]) if text}
        framing = [parts[0], *(p.rpartition(header)[0] + header if header else p for p in parts[1:4]), parts[4]]
        tokens = {found for part in framing for found in self._pattern.findall(part)} | (named & set(self._controls))
        last, middle = (next(iter(self._pattern.findall(part)), None) for part in (parts[4], parts[2]))
        ends = {text for text in (last, middle if middle == last else None) if text} | {*self._eos}
        return Frame(header, tuple(sorted(own, key=len, reverse=True)), frozenset(tokens), frozenset(ends))

    def around(self, messages: Sequence[Message]) -> list[str]:
        """What the template puts before the first content, and after each: found by rendering stand-ins for them.

        TokenizerError where it drops or moves a message.
        """
        marks = [_stand_in(i) for i in range(len(messages))]
        return self._around([{**m, "content": mark} for m, mark in zip(messages, marks, strict=True)], marks)

    def _around(self, messages: Sequence[Message], marks: Sequence[str]) -> list[str]:
        rendered = self.render(messages)
        parts = []
        for mark in marks:
            before, found, rendered = rendered.partition(mark)
            if not found:
                raise TokenizerError(
                    f"The chat template of {self._name} drops or moves a message, so its words cannot be told from the "
                    "template's. Leave that message out."
                )
            parts.append(before)
        return [*parts, rendered]

    def _render(
        self, messages: Sequence[Message], tools: Sequence[dict] | None = None, add_generation_prompt: bool = False
    ) -> tuple[str, list[tuple[int, int]]]:
        """The chat, and the places that the template marks as generated by a model."""
        if not self._definition.chat_template:
            raise TokenizerError(f"The tokenizer {self._name} has no chat template. Use plain text instead of a chat.")
        if any(self.holds_control(str(message.get("role", ""))) for message in messages):
            raise TokenizerError(
                "A role of the chat holds a control token. Use a plain role such as user or assistant."
            )
        variables = {
            **self._definition.special_tokens,
            "messages": [self._for_template(message) for message in messages],
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": FIXED_DATE.strftime,
        }
        try:
            return self._run(variables)
        except TokenizerError:
            raise
        # A template is a program of somebody else's, and fails in every way that programs do.
        except Exception as error:
            raise TokenizerError(
                f"The chat template of {self._name} refuses these messages: {first_line(error)}"
            ) from error

    def _run(self, variables: dict[str, Any]) -> tuple[str, list[tuple[int, int]]]:
        """What `_render` gives; whatever the template raises."""
        template = self._definition.template_for(variables["tools"])
        if not template_trial.ends(template):
            raise TokenizerError(
                f"The chat template of {self._name} takes more than {template_trial.SECONDS} seconds, or makes more "
                f"than {template_trial.CHARACTERS:,} characters, for a chat of four short messages. Use another model."
            )
        # Only chats need it, and importing it takes longer than counting a small text. Public ways to render take no
        # function of our own, which a fixed date needs.
        from transformers.utils.chat_template_utils import _compile_jinja_template

        compiled = _compile_jinja_template(template)
        if not _GENERATION.search(template):
            return compiled.render(**variables), []
        blocks: list[str] = []
        marked: list[tuple[int, int]] = []
        with compiled.environment.activate_tracker(blocks, marked):
            for block in compiled.generate(**variables):
                blocks.append(block)
        return "".join(blocks), marked

    def _for_template(self, message: Message) -> dict[str, Any]:
        """The message with its thought under both names that templates read, and arguments as the template takes
        them."""
        made = dict(message)
        if "reasoning_content" in made:
            made["thinking"] = made["reasoning_content"]
        if "tool_calls" in made:
            made["tool_calls"] = [self._call(call) for call in made["tool_calls"]]
        return made

    def _call(self, call: dict) -> dict:
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str) or self._takes_text:
            return call
        try:
            decoded = json.loads(arguments)
        except (ValueError, RecursionError):
            return call
        return {**call, "function": {**call["function"], "arguments": decoded}}

    @cached_property
    def _takes_text(self) -> bool:
        """Whether arguments that are JSON text already are put in as they are, not quoted once more."""
        return '{"a": 1}' in self._try_call(arguments='{"a": 1}')

    @cached_property
    def _renders_calls(self) -> bool:
        return _stand_in(9) in self._try_call(arguments={"a": 1})

    def _try_call(self, arguments: object) -> str:
        call = {"type": "function", "id": "abcdefghi", "function": {"name": _stand_in(9), "arguments": arguments}}
        chat = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        try:
            return self._run({**self._definition.special_tokens, "messages": chat, "tools": None})[0]
        # What it raises says that it takes no such call.
        except Exception:
            return ""

    def _typed(
        self, messages: Sequence[Message], tools: Sequence[dict] | None, text: str, add_generation_prompt: bool = False
    ) -> tuple[tuple[int, int], ...]:
        tool_text = json.dumps(tools, ensure_ascii=False) if tools else ""
        if not any(self.holds_typed(message) for message in messages) and not self.holds_control(tool_text):
            return ()
        marked = [self._marked(message, self._pattern_of(message)) for message in messages]
        marked_tools = _map_strings(list(tools), lambda value: _mark(value, self._pattern)) if tools else None
        try:
            spans, without = _unmarked(self.render(marked, marked_tools, add_generation_prompt))
        except TokenizerError:
            without = ""
        if without == text:
            return spans
        # The template looks at the very characters that were marked, so contents are looked for as they are.
        found: list[tuple[int, int]] = []
        at = 0
        for message in messages:
            content = str(message["content"]).strip()
            at = text.find(content, at)
            if at < 0 or len(message) > 2:
                raise TokenizerError(
                    f"The chat template of {self._name} changes a message that holds control-token text, so its words "
                    "cannot be told from the template's. Leave that message out."
                )
            found += [(at + a, at + b) for a, b in (m.span() for m in self._pattern_of(message).finditer(content))]
            at += len(content)
        return tuple(found)

    def _pattern_of(self, message: Message) -> re.Pattern[str]:
        return self._frame_pattern if message["role"] == "assistant" else self._pattern

    def _marked(self, message: Message, pattern: re.Pattern[str]) -> dict[str, Any]:
        return {
            key: value if key == "role" else _map_strings(value, lambda text: _mark(text, pattern))
            for key, value in message.items()
        }

    def _until_frame(self, chat: Rendering, start: int, stop: int) -> Written:
        """The turn that starts at `start`: up to the next token that frames turns, `stop` at the latest."""
        for match in self._frame_pattern.finditer(chat.text, start):
            if _within(match.start(), chat.typed):
                continue
            if match.start() > stop and chat.text[stop : match.start()].strip():
                break
            end = match[0] if match[0] in self.frame.ends else None
            return Written(_cut(chat, start, min(match.start(), max(stop, start))), end)
        return Written(_cut(chat, start, stop), None)

    def _past_own(self, text: str, start: int) -> int:
        return start + next((len(own) for own in self.frame.own if text.startswith(own, start)), 0)

    def _turn_between(
        self, messages: Sequence[Message], tools: Sequence[dict] | None, chat: Rendering, index: int
    ) -> Written:
        """The turn of message `index`, found by rendering the chat up to it."""
        before = self.render(messages[:index], tools, add_generation_prompt=True) if index else ""
        after = self.render(messages[: index + 1], tools)
        mark = _stand_in(0)
        head, found, tail = self.render([*messages[:index], {"role": "assistant", "content": mark}], tools).partition(
            mark
        )
        right = chat.text.startswith(before) and chat.text.startswith(after) and head.startswith(before)
        if not right or not found or len(after) < len(before):
            raise TokenizerError(
                f"The chat template of {self._name} does not render this chat turn by turn, so the assistant's part of "
                "it cannot be told apart. Count whole chats."
            )
        start = len(head) if after.startswith(head) else len(before)
        stop = len(after) - len(tail) if after.endswith(tail) and len(after) - len(tail) >= start else len(after)
        ended = next(iter(self._pattern.findall(tail)), None)
        return Written(_cut(chat, start, stop), ended if ended in self.frame.ends else None)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return _any_of(self._controls)

    @cached_property
    def _frame_pattern(self) -> re.Pattern[str]:
        return _any_of(self.frame.tokens)

    @cached_property
    def _looked_for(self) -> tuple[str, ...]:
        """Tags that the template has words for, such as </think>."""
        return tuple(sorted(set(re.findall(r"</?[\w|]+>|\[/?[A-Z_]+\]", json.dumps(self._definition.chat_template)))))

    @cached_property
    def _by_start(self) -> dict[str, tuple[str, ...]]:
        """The control tokens by their first two characters, of which there are few kinds.

        There may be hundreds; looking for each of them in every message would take longer than encoding.
        """
        by_start: dict[str, tuple[str, ...]] = {}
        for text in self._controls:
            by_start[text[:2]] = (*by_start.get(text[:2], ()), text)
        return by_start


def _split_thought(message: Message) -> tuple[str, str]:
    """The thought and the rest of a message, the thought from its own field or between tags in the content."""
    content = str(message["content"])
    if "reasoning_content" in message:
        return str(message["reasoning_content"]), content
    before, found, after = content.rpartition("</think>")
    if not found or message["role"] != "assistant":
        return "", content
    return before.rpartition("<think>")[2], after


def has_thought(message: Message) -> bool:
    """Whether an assistant's message has a thought, in a field of its own or between tags."""
    return bool(_split_thought(message)[0].strip())


def _stand_in(number: int) -> str:
    return f"\u2060{hashlib.sha256(str(number).encode()).hexdigest()}\u2060"


def _any_of(texts: Sequence[str] | frozenset[str] | set[str]) -> re.Pattern[str]:
    """Finds any of `texts`, the longest where several start."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=lambda text: (-len(text), text)))) or r"(?!)")


def _strings(value: Any) -> list[str]:
    """All strings of a message but its role, keys of arguments included."""
    match value:
        case str():
            return [value]
        case {"role": str(), **rest}:
            return [text for item in rest.values() for text in _strings(item)]
        case Mapping():
            return [text for key, item in value.items() for text in (str(key), *_strings(item))]
        case list() | tuple():
            return [text for item in value for text in _strings(item)]
    return []


def _map_strings(value: Any, change: Any) -> Any:
    match value:
        case str():
            return change(value)
        case Mapping():
            return {change(key): _map_strings(item, change) for key, item in value.items()}
        case list() | tuple():
            return [_map_strings(item, change) for item in value]
    return value


def _mark(text: str, pattern: re.Pattern[str]) -> str:
    return pattern.sub(lambda match: f"{_OPEN}{match[0]}{_CLOSE}", text)


def _unmarked(text: str) -> tuple[tuple[tuple[int, int], ...], str]:
    """The marked places in `text` without marks, and that text."""
    parts: list[str] = []
    spans = []
    size = 0
    for i, part in enumerate(re.split(f"{_OPEN}|{_CLOSE}", text)):
        if i % 2 and part:
            spans.append((size, size + len(part)))
        parts.append(part)
        size += len(part)
    return tuple(spans), "".join(parts)


def _cut(chat: Rendering, start: int, stop: int) -> Rendering:
    typed = tuple((a - start, b - start) for a, b in chat.typed if start <= a and b <= stop)
    return Rendering(chat.text[start:stop], typed)


def _occurrences(text: str, part: str) -> list[int]:
    return [match.start() for match in re.finditer(re.escape(part), text)]


def _within(at: int, spans: Sequence[tuple[int, int]]) -> bool:
    i = bisect.bisect_right(spans, at, key=lambda span: span[0])
    return i > 0 and at < spans[i - 1][1]


def _first_from(at: int, spans: Sequence[tuple[int, int]]) -> float:
    """Where the first of `spans` starts that does not start before `at`."""
    i = bisect.bisect_left(spans, at, key=lambda span: span[0])
    return spans[i][0] if i < len(spans) else float("inf")
