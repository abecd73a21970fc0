"""`count`: every source and option reaches the counting, and what is printed tells what was done."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from tests.tiny_tokenizer import make_tiny_tokenizer
from vocabtrim_core.cli import main
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.tokenization import Tokenizer


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


@pytest.fixture(scope="module")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return make_tiny_tokenizer(tokenizer_folder)


@pytest.fixture
def count(tokenizer: Tokenizer, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]):
    def run(*arguments: object, code: int = 0) -> dict | str:
        """The printed object, or the line on stderr where it is to fail."""
        command = ["count", *arguments, "--tokenizer", tokenizer_folder, "--json"]
        assert main([str(argument) for argument in command]) == code
        output = capsys.readouterr()
        return output.err if code else json.loads(output.out)

    return run


def write(path: Path, *records: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_folders_globs_and_files_together(tmp_path: Path, count) -> None:
    """Bug: only the first source is counted; a file that two sources name is counted twice."""
    write(tmp_path / "in" / "a.jsonl", {"text": "The cat"})
    (tmp_path / "in" / "deep").mkdir()
    (tmp_path / "in" / "deep" / "b.txt.gz").write_bytes(gzip.compress(b"The dog"))
    write(tmp_path / "c.jsonl", {"text": "The mat"})
    write(tmp_path / "d.jsonl", {"text": "sat"}, {})
    result = count(tmp_path / "in", tmp_path / "*.jsonl", tmp_path / "c.jsonl")
    assert result["documents"] == 4 and result["parts"] == 4 and result["bad_records"] == 1
    assert {Path(file["name"]).name for file in result["files"]} == {"a.jsonl", "b.txt.gz", "c.jsonl", "d.jsonl"}
    assert result["engine"] == "local" and result["encoder"] == "tokenizers"


def test_field_roles_newlines_and_encoding(tmp_path: Path, tokenizer: Tokenizer, count) -> None:
    """Bug: an option is accepted and ignored."""

    def tokens(*texts: str) -> int:
        return sum(map(len, tokenizer.encode_texts(texts)))

    fields = write(tmp_path / "fields.jsonl", {"text": "The cat", "body": "The dog saw the mat"})
    assert count(fields)["tokens"] == tokens("The cat")
    assert count(fields, "--field", "body")["tokens"] == tokens("The dog saw the mat")
    turns = [{"role": "user", "content": "The dog saw the mat"}, {"role": "assistant", "content": "The cat"}]
    chats = write(tmp_path / "chats.jsonl", {"messages": turns})
    assert count(chats)["tokens"] == len(tokenizer.encode_chat(turns))
    assert count(chats, "--roles", "assistant")["tokens"] == tokens("The cat") + 1
    (tmp_path / "crlf.txt").write_bytes(b"The cat\r\nsat")
    assert count(tmp_path / "crlf.txt")["tokens"] == tokens("The cat\nsat")
    assert count(tmp_path / "crlf.txt", "--newlines", "keep")["tokens"] == tokens("The cat\r\nsat")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1") * 50)
    assert count(tmp_path / "latin.txt", "--encoding", "latin-1")["tokens"] == tokens("é" * 50)
    np.array([1, 2, 3, 0] * 3, dtype="<u2").tofile(tmp_path / "ids.bin")
    assert count(tmp_path / "ids.bin", "--token-dtype", "uint16")["tokens"] == 12
    assert count(tmp_path / "ids.bin", "--token-dtype", "uint32", code=2)


def test_resume(tmp_path: Path, count) -> None:
    """Bug: the folder is not used; the speed of a resumed count is that of reading its state."""
    for i in range(3):
        write(tmp_path / "in" / f"{i}.jsonl", {"text": f"The cat {i}"})
    arguments = (tmp_path / "in", "--resume", tmp_path / "state", "--out", tmp_path / "counts.npz")
    first = count(*arguments)
    saved = TokenCounts.load(tmp_path / "counts.npz")
    write(tmp_path / "in" / "3.jsonl", {"text": "The dog"})
    second = count(*arguments)
    assert (first["resumed_parts"], second["resumed_parts"], second["parts"]) == (0, 3, 4)
    assert second["tokens"] > first["tokens"] > 0
    assert second["tokens_per_second"] * second["seconds"] == pytest.approx(second["tokens"] - first["tokens"])
    assert saved.tokens == first["tokens"] and TokenCounts.load(tmp_path / "counts.npz").tokens == second["tokens"]


@pytest.mark.parametrize(
    "options, words",
    [
        (["--ray-address", "10.0.0.1:6379"], "--engine ray only"),
        (["--encoding", "no-such"], "no-such"),
        (["--roles", "user"], "invalid choice"),
        (["--engine", "dask"], "invalid choice"),
        (["/no/such/*.jsonl"], "No file matches"),
        (["hf:"], "names no data set"),
    ],
)
def test_mistakes(tmp_path: Path, count, options: list[str], words: str) -> None:
    """Bug: a mistake surfaces as a traceback, or only after the counting."""
    error = count(write(tmp_path / "a.jsonl", {"text": "The cat"}), *options, code=2)
    assert words in error and len(error.splitlines()) == 1


def test_the_text_for_people(tmp_path: Path, count, tokenizer_folder: Path, capsys) -> None:
    """Bug: a folder of thousands of files fills the screen; what was skipped is not said."""
    for i in range(25):
        write(tmp_path / "in" / f"{i:02}.jsonl", {"text": "The cat"}, {})
    assert main(["count", str(tmp_path / "in"), "--tokenizer", str(tokenizer_folder)]) == 0
    output = capsys.readouterr().out
    assert "and 5 files more" in output and "Records skipped: 25." in output and ".jsonl:2: " in output
