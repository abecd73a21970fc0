"""Prompts to decode after: one that was typed, a JSONL file of them, or those that come with the project.

Benchmarks sort prompts by task, in the seven columns of FR-Spec's tables (arXiv 2502.14856): MT, Conv., RAG, Math, QA,
Summ. and Code. They are Spec-Bench's six (arXiv 2401.07851) and HumanEval, and are called here as in `TASKS`. Beware of
two names: MT is machine translation; MT-bench, with its categories “math” and “coding”, is the conversation column.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from dataclasses import dataclass
from pathlib import Path

from vocabtrim_core.corpora import MAX_FILE_BYTES, CorpusFile, decode_text, read_file
from vocabtrim_core.errors import CorpusError, SettingError
from vocabtrim_core.shipped import task_prompts_folder

TASKS = ("translation", "conversation", "rag", "math", "qa", "summarisation", "code")
"""The columns of the papers' tables, in their order."""

_OTHER_NAMES = {
    "mt": "translation",
    "math_reasoning": "math",
    "summarization": "summarisation",
    "humaneval": "code",
}
# MT-bench's categories: what Spec-Bench calls multi-turn conversation.
_MT_BENCH = {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
_GZIP_MARK = b"\x1f\x8b"


@dataclass(frozen=True)
class Prompt:
    """A user's turn, the line it was read from ("file.jsonl:3"), if it was, and its task: one of `TASKS`, a name that
    its file gives, or None."""

    text: str
    where: str | None = None
    task: str | None = None


def typed_prompt(text: str) -> Prompt:
    """A prompt that was typed. SettingError where it is blank or is not text."""
    try:
        return Prompt(_checked(text))
    except ValueError as error:
        raise SettingError(f"The prompt {error}. Write something for the model to answer.") from None


def read_prompts(path: str | Path, limit: int | None = None) -> list[Prompt]:
    """The prompts of a JSONL file, plain or gzip'd, at most the first `limit` of them.

    A line is an object with `turns` (a list of strings, as in Spec-Bench and MT-Bench: the first is taken), `prompt`
    (a string, as in HumanEval) or `messages` (the first of the user's). Its task is `task` or `category`, where that is
    a string, under the name that it has in `TASKS`, if any. Spec-Bench's `question.jsonl` and HumanEval are read as
    they are. Blank lines are skipped. Raises CorpusError, with file and line, for anything else, and for a file that
    `corpora` could not read as text either.
    """
    return parse_prompts(read_file(path), str(path), limit)


def parse_prompts(file: CorpusFile, name: str, limit: int | None = None) -> list[Prompt]:
    """What `read_prompts` does with a file that has been read; `name` is what its lines are called by."""
    text = decode_text(_decompressed(file))
    prompts: list[Prompt] = []
    # Not splitlines(): U+2028 and its like may stand inside a JSON string.
    for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
        if len(prompts) == limit:
            break
        if line.strip():
            where = f"{name}:{number}"
            try:
                record = _record(line)
                prompts.append(Prompt(_first_turn(record), where, _task(record)))
            except ValueError as error:
                raise CorpusError(f"{where}: {error}. Correct or remove this line.") from None
    return prompts


def task_prompts() -> list[Prompt]:
    """The prompts that come with the project (see the README beside them), task by task in the order of `TASKS`."""
    return [prompt for task in TASKS for prompt in read_prompts(task_prompts_folder() / f"{task}.jsonl")]


def is_unicode(text: str) -> bool:
    """Whether every character is one. Half a surrogate pair is not, and no tokenizer can encode it: JSON can spell it,
    and a terminal in another encoding gives it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _decompressed(file: CorpusFile) -> CorpusFile:
    """The file, without its gzip compression if it has one. Told by its first bytes, as the name may say nothing."""
    if not file.data.startswith(_GZIP_MARK):
        return file
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(file.data)) as stream:
            # One byte more than is allowed, so that decode_text refuses what does not end there.
            return CorpusFile(file.name, stream.read(MAX_FILE_BYTES + 1))
    except (OSError, EOFError, zlib.error):
        raise CorpusError(f"{file.name} is a damaged gzip file. Download or compress it again.") from None


def _record(line: str) -> object:
    """The JSON value of a line; ValueError, with the reason as its text, where it is not JSON."""
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error.msg}, column {error.colno})") from None
    except (ValueError, RecursionError):
        raise ValueError("not valid JSON (a number too long or brackets too deep)") from None


def _task(record: object) -> str | None:
    match record:
        case {"task": str(name)}:
            pass
        case {"question_id": _, "turns": _, "category": str(name)} if name in _MT_BENCH:
            return "conversation"
        case {"category": str(name)}:
            pass
        case {"task_id": _, "entry_point": _}:
            return "code"
        case _:
            return None
    return _OTHER_NAMES.get(name, name) if name.strip() else None


def _first_turn(record: object) -> str:
    """The prompt in one record; ValueError, with the reason as its text, where there is none."""
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
