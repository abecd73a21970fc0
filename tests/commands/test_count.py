"""`count`: every source and option reaches the counting, and what is printed tells what was done."""

import errno
import gzip
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.tiny_tokenizer import make_tiny_tokenizer
from vocabtrim_core.cli import PROGRAM, main
from vocabtrim_core.corpora import plan_shards
from vocabtrim_core.counting import TokenCounts, run_count
from vocabtrim_core.errors import CorpusError
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


# Nothing that was done is lost


@pytest.fixture
def no_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting itself is a failure: what is refused has to be refused before."""
    monkeypatch.setattr("vocabtrim_core.commands.count.run_count", None)


@pytest.mark.usefixtures("no_counting")
def test_a_place_that_cannot_be_written_is_refused_before_the_count(tmp_path: Path, count, monkeypatch) -> None:
    """Bug: a folder, a full disk or one that may not be written to is told after hours, counts lost."""
    corpus = write(tmp_path / "a.jsonl", {"text": "The cat"})
    (tmp_path / "folder.npz").mkdir()
    assert "Is a directory" in count(corpus, "--out", tmp_path / "folder.npz", code=2)
    assert "too long" in count(corpus, "--out", tmp_path / ("n" * 300 + ".npz"), code=2)

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert "No space left" in count(corpus, "--out", tmp_path / "counts.npz", code=2)
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "folder.npz"}


def test_a_name_as_long_as_names_can_be(tmp_path: Path, count) -> None:
    """Bug: the temporary file's name is longer than the legal one that was asked for."""
    out = tmp_path / ("n" * 251 + ".npz")
    assert count(write(tmp_path / "a.jsonl", {"text": "The cat"}), "--out", out)["out"] == str(out)
    assert TokenCounts.load(out).documents == 1


def test_counts_that_cannot_be_saved_are_kept(
    tmp_path: Path, tokenizer_folder: Path, tokenizer, monkeypatch, capsys
) -> None:
    """Bug: a disk that fills during the count loses the counts, and nothing is printed."""
    out, save = tmp_path / "counts.npz", TokenCounts.save

    def full(counts: TokenCounts, path: Path) -> None:
        if Path(path) == out:
            raise CorpusError(f"{path} cannot be written: No space left on device.")
        save(counts, path)

    monkeypatch.setattr(TokenCounts, "save", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    corpus = write(tmp_path / "a.jsonl", {"text": "The cat"})
    result, errors = incomplete(capsys, "count", corpus, "--tokenizer", tokenizer_folder, "--out", out)
    assert result["tokens"] > 0 and TokenCounts.load(result["out"]).tokens == result["tokens"]
    assert len(errors) == 1 and "No space left" in errors[0] and result["out"] in errors[0]


def incomplete(capsys: pytest.CaptureFixture[str], *command: object) -> tuple[dict, list[str]]:
    """The printed object and the lines on stderr of a command that ends with exit code 3."""
    assert main([*map(str, command), "--json"]) == 3
    output = capsys.readouterr()
    # Beside them is the progress of what takes long.
    return json.loads(output.out), [line for line in output.err.splitlines() if line.startswith(f"{PROGRAM}: ")]


def test_a_file_that_breaks_off_does_not_end_the_count(
    tmp_path: Path, tokenizer_folder: Path, tokenizer, capsys
) -> None:
    """Bug: one damaged file ends a count of hours with nothing saved, or is missing from it with exit code 0."""
    lines = "".join(json.dumps({"text": f"The cat {number} {number**40}"}) + "\n" for number in range(15_000))
    write(tmp_path / "good.jsonl", {"text": "The dog"})
    cut = gzip.compress(lines.encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(cut[: len(cut) * 3 // 4])
    out = tmp_path / "counts.npz"
    sources = [tmp_path / "cut.jsonl.gz", tmp_path / "good.jsonl"]
    result, errors = incomplete(
        capsys, "count", *sources, "--tokenizer", tokenizer_folder, "--out", out, "--resume", tmp_path / "state"
    )
    (left,) = result["left_out"]
    assert left["file"] == "cut.jsonl.gz" and left["serious"] and 1_000 < left["documents"] < 15_000
    assert len(errors) == 1 and "cut short" in errors[0] and f"{left['documents']:,} of its documents" in errors[0]
    counts = TokenCounts.load(out)
    assert counts.documents == result["documents"] == left["documents"] + 1 and counts.left_out[0].file == left["file"]
    (tmp_path / "cut.jsonl.gz").write_bytes(cut)
    assert main([*map(str, ("count", *sources, "--tokenizer", tokenizer_folder, "--resume", tmp_path / "state"))]) == 0
    printed = capsys.readouterr().out
    assert "15,001 documents" in printed and "1 of 2 parts had been counted before" in printed


@pytest.mark.usefixtures("no_counting")
def test_a_named_file_without_a_record_is_refused_before_the_count(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Bug: a mistake that a look at the files shows is told after all others were counted."""
    (tmp_path / "bad.jsonl").write_text("oops\n" * 10)
    counted: list[str] = []
    shards = plan_shards([write(tmp_path / "good.jsonl", {"text": "The dog"}), tmp_path / "bad.jsonl"])
    with pytest.raises(CorpusError, match=r"bad\.jsonl has no usable record.*line 1"):
        run_count(shards, tokenizer, on_progress=lambda share, message: counted.append(message))
    assert not counted


def test_a_file_without_a_record_further_on_is_left_out(
    tmp_path: Path, tokenizer_folder: Path, tokenizer, capsys
) -> None:
    """Bug: a named file of thousands of bad lines ends the count of the others after it began."""
    (tmp_path / "bad.jsonl").write_text("oops\n" * 2_000)
    good = write(tmp_path / "good.jsonl", {"text": "The dog"})
    result, errors = incomplete(capsys, "count", good, tmp_path / "bad.jsonl", "--tokenizer", tokenizer_folder)
    assert result["documents"] == 1 and len(errors) == 1 and "bad.jsonl has no usable record" in errors[0]
    assert main(["count", str(good), str(tmp_path / "bad.jsonl"), "--tokenizer", str(tokenizer_folder)]) == 3
    assert "Files left out, whole or in part: 1." in capsys.readouterr().out


def test_what_a_folder_holds_beside_is_said(tmp_path: Path, count) -> None:
    """Bug: an empty file or a picture in a folder fails a script, or is passed over without a word."""
    write(tmp_path / "in" / "a.jsonl", {"text": "The cat"})
    (tmp_path / "in" / "empty.txt").write_text("")
    (tmp_path / "in" / "b.png").write_bytes(b"\x89PNG")
    result = count(tmp_path / "in")
    assert [Path(each["file"]).name for each in result["left_out"]] == ["in", "empty.txt"] and not result["problems"]
