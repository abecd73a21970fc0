"""Prompts to decode after: one that was typed, or a JSONL file of them."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

from vocabtrim_core.corpora import decode_text, read_file
from vocabtrim_core.errors import CorpusError, SettingError


@dataclass(frozen=True)
class Prompt:
    """A user's turn, and the line it was read from ("file.jsonl:3"), if it was."""

    text: str
    where: str | None = None


def typed_prompt(text: str) -> Prompt:
    """A prompt that was typed. SettingError where it is blank or is not text."""
    try:
        return Prompt(_checked(text))
    except ValueError as error:
        raise SettingError(f"The prompt {error}. Write something for the model to answer.") from None


def read_prompts(path: str | Path, limit: int | None = None) -> list[Prompt]:
    """The prompts of a JSONL file, at most the first `limit` of them.

    A line is an object with `turns` (a list of strings, as in Spec-Bench and MT-Bench: the first is taken), `prompt`
    (a string) or `messages` (the first of the user's). Blank lines are skipped. Raises CorpusError, with file and
    line, for anything else, and for a file that `corpora` could not read as text either.
    """
    text = decode_text(read_file(path))
    prompts: list[Prompt] = []
    # Not splitlines(): U+2028 and its like may stand inside a JSON string.
    for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
        if len(prompts) == limit:
            break
        if line.strip():
            where = f"{path}:{number}"
            try:
                prompts.append(Prompt(_first_turn(line), where))
            except ValueError as error:
                raise CorpusError(f"{where}: {error}. Correct or remove this line.") from None
    return prompts


def is_unicode(text: str) -> bool:
    """Whether every character is one. Half a surrogate pair is not, and no tokenizer can encode it: JSON can spell it,
    and a terminal in another encoding gives it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _first_turn(line: str) -> str:
    """The prompt in one JSONL line; ValueError, with the reason as its text, where there is none."""
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON (a number too long or brackets too deep)") from None
    match record:
        case {"turns": [turn, *_]} | {"prompt": turn}:
            pass
        case {"messages": [*messages]}:
            turns = [said for message in messages if (said := _user_turn(message)) is not None]
            if not turns:
                raise ValueError("no message of the role “user” has content")
            turn = turns[0]
        case _:
            raise ValueError("not an object with `turns` (a list), `prompt` (a string) or `messages` (a list)")
    if not isinstance(turn, str):
        raise ValueError("the prompt is not a string")
    try:
        return _checked(turn)
    except ValueError as error:
        raise ValueError(f"the prompt {error}") from None


def _user_turn(message: object) -> object:
    match message:
        case {"role": "user", "content": content}:
            return content
    return None


def _checked(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    if not is_unicode(text):
        raise ValueError("holds characters that are not valid Unicode text")
    return text
