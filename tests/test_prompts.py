from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vocabtrim_core.errors import CorpusError, SettingError
from vocabtrim_core.prompts import TASKS, Prompt, read_prompts, task_prompts, typed_prompt

DATA = Path(__file__).parent.parent / "data"
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)
FORMS = (
    lambda text: {"turns": [text, "a later turn"]},
    lambda text: {"prompt": text},
    lambda text: {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(texts=st.lists(TEXTS, min_size=1), form=st.sampled_from(FORMS), raw=st.booleans())
def test_round_trip(tmp_path: Path, texts: list[str], form, raw: bool) -> None:
    """Bug: a later turn is taken, a prompt is altered, or a line is cut at a separator inside a JSON string."""
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps(form(text), ensure_ascii=not raw) for text in texts]
    path.write_bytes("\n\n".join(lines).encode())
    assert [prompt.text for prompt in read_prompts(path)] == texts


@pytest.mark.parametrize("encoding, newline", [("utf-8-sig", "\n"), ("utf-16", "\n"), ("utf-8", "\r\n")])
def test_encodings(tmp_path: Path, encoding: str, newline: str) -> None:
    """Bug: a byte order mark or a CR ends up in the JSON."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(newline.join(['{"prompt": "naïve"}', '{"prompt": "two"}']).encode(encoding))
    assert [prompt.text for prompt in read_prompts(path)] == ["naïve", "two"]


def test_limit_and_place(tmp_path: Path) -> None:
    """Bug: lines beyond the limit are read (and may fail), or a prompt names another line than its own."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n\n{"prompt": "two"}\n{broken\n')
    assert read_prompts(path, limit=2) == [Prompt("one", f"{path}:1"), Prompt("two", f"{path}:3")]


@pytest.mark.parametrize(
    "line, reason",
    [
        ("{broken", "not valid JSON"),
        ("9" * 5000, "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "not an object"),
        ("{}", "`turns`"),
        ('{"turns": []}', "`turns`"),
        ('{"turns": "text"}', "`turns`"),
        ('{"turns": [3]}', "not a string"),
        ('{"prompt": null}', "not a string"),
        ('{"prompt": "  "}', "is empty"),
        (r'{"prompt": "\ud83d"}', "not valid Unicode"),
        ('{"messages": []}', "no message of the role"),
        ('{"messages": ["text"]}', "no message of the role"),
        ('{"messages": [{"role": "assistant", "content": "Hi"}]}', "no message of the role"),
        ('{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "not a string"),
    ],
)
def test_malformed_line(tmp_path: Path, line: str, reason: str) -> None:
    """Bug: a malformed line is skipped, or reported without its place."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line)
    with pytest.raises(CorpusError, match=reason) as caught:
        read_prompts(path)
    assert f"{path}:2: " in str(caught.value)


@pytest.mark.parametrize("content", [b"", b" \n\n", b"\x00\x01\x02", b'{"prompt": "\xff"}'])
def test_not_text(tmp_path: Path, content: bytes) -> None:
    """Bug: a file that is not text gives another error than one that says so, or no prompt and no error."""
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(CorpusError):
        read_prompts(path)


@pytest.mark.parametrize("name", ["prompts.jsonl.gz", "prompts.jsonl"])
def test_gzip(tmp_path: Path, name: str) -> None:
    """Bug: a compressed file is taken for a binary one, or only where its name ends in .gz (an upload's may not)."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(b'{"prompt": "one"}\n\n{"prompt": "two"}\n'))
    assert read_prompts(path) == [Prompt("one", f"{path}:1"), Prompt("two", f"{path}:3")]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-12], lambda data: data[:20] + b"\xff" * 20, lambda data: data[:2]]
)
def test_damaged_gzip(tmp_path: Path, damage) -> None:
    """Bug: half a download ends in a traceback, or gives the prompts before the break as if they were all."""
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(damage(gzip.compress("".join(f'{{"prompt": "{i}"}}\n' for i in range(500)).encode())))
    with pytest.raises(CorpusError, match="damaged"):
        read_prompts(path)


def test_gzip_of_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a small file decompresses to more than the memory holds."""
    monkeypatch.setattr("vocabtrim_core.corpora.limits.MAX_FILE_BYTES", 1000)
    monkeypatch.setattr("vocabtrim_core.prompts.MAX_FILE_BYTES", 1000)
    path = tmp_path / "prompts.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"prompt": "one"}\n' * 1000))
    with pytest.raises(CorpusError, match="more than"):
        read_prompts(path)


SPEC_BENCH_CATEGORIES = {
    "translation": "translation",
    "summarization": "summarisation",
    "qa": "qa",
    "math_reasoning": "math",
    "rag": "rag",
    "writing": "conversation",
    "roleplay": "conversation",
    "reasoning": "conversation",
    "math": "conversation",
    "coding": "conversation",
    "extraction": "conversation",
    "stem": "conversation",
    "humanities": "conversation",
}


def test_spec_bench(tmp_path: Path) -> None:
    """Bug: MT-bench's questions about mathematics and code land in the columns Math and Code, or a category is lost."""
    path = tmp_path / "question.jsonl"
    rows = (
        {"question_id": i, "category": category, "turns": [f"Question {i}", "Next"], "reference": ["a", "b"]}
        for i, category in enumerate(SPEC_BENCH_CATEGORIES, start=81)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = read_prompts(path)
    assert [prompt.task for prompt in prompts] == list(SPEC_BENCH_CATEGORIES.values())
    assert [prompt.text for prompt in prompts[:2]] == ["Question 81", "Question 82"]


def test_human_eval(tmp_path: Path) -> None:
    """Bug: the function to complete is stripped of its indentation, or is no code."""
    path = tmp_path / "HumanEval.jsonl.gz"
    head = 'def twice(x: int) -> int:\n    """ Double x. """\n'
    rest = {"canonical_solution": "    return 2 * x\n", "test": "def check(candidate): ...", "entry_point": "twice"}
    path.write_bytes(gzip.compress(json.dumps({"task_id": "HumanEval/0", "prompt": head, **rest}).encode()))
    assert read_prompts(path) == [Prompt(head, f"{path}:1", "code")]


@pytest.mark.parametrize(
    "fields, task",
    [
        ({"task": "math"}, "math"),
        ({"task": "mt"}, "translation"),
        ({"task": "summarization"}, "summarisation"),
        ({"task": "legal"}, "legal"),
        ({"task": "math", "category": "qa"}, "math"),
        ({"category": "math"}, "math"),
        ({"category": "humaneval"}, "code"),
        ({"task": None}, None),
        ({"task": " "}, None),
        ({"category": 3}, None),
        ({}, None),
    ],
)
def test_task_of_plain_prompts(tmp_path: Path, fields: dict, task: str | None) -> None:
    """Bug: a prompt of one's own loses its task, or a label that is no text stops the reading."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "What is it?", **fields}))
    assert [prompt.task for prompt in read_prompts(path)] == [task]


def _sentences(text: str) -> set[str]:
    """Sentences of four words and more, without regard to case, spaces and marks at their ends."""
    parts = re.split(r"(?<=[.?!:])\s+|\n", text)
    return {" ".join(words).lower() for part in parts if len(words := part.strip(' .?!:"“”„').split()) >= 4}


def test_task_prompts() -> None:
    """Bug: a column of the table rests on a handful of prompts, or counts one twice."""
    prompts = task_prompts()
    counts = Counter(prompt.task for prompt in prompts)
    assert list(counts) == list(TASKS)
    assert min(counts.values()) >= 15
    assert len({" ".join(prompt.text.split()) for prompt in prompts}) == len(prompts)


def test_task_prompts_are_their_own() -> None:
    """Bug: prompts that a drafter or a default was chosen with also measure it."""
    seen = set().union(*(_sentences(prompt.text) for prompt in read_prompts(DATA / "prompts.jsonl")))
    for prompt in task_prompts():
        assert not _sentences(prompt.text) & seen, prompt.where


@pytest.mark.parametrize("text", ["", " \n", "half \ud83d"])
def test_typed_prompt(text: str) -> None:
    """Bug: a blank prompt reaches the model inside its chat template, or half a surrogate pair the tokenizer."""
    with pytest.raises(SettingError):
        typed_prompt(text)
