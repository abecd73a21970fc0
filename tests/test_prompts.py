from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vocabtrim_core.errors import CorpusError, SettingError
from vocabtrim_core.prompts import Prompt, read_prompts, typed_prompt

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


@pytest.mark.parametrize("text", ["", " \n", "half \ud83d"])
def test_typed_prompt(text: str) -> None:
    """Bug: a blank prompt reaches the model inside its chat template, or half a surrogate pair the tokenizer."""
    with pytest.raises(SettingError):
        typed_prompt(text)
