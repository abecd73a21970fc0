"""However a corpus is cut, its shards together give what the whole gives, with the same places in the reports."""

import gzip
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.corpus_writers import records_file
from vocabtrim_core.corpora import (
    BadRecord,
    CorpusFile,
    Document,
    ReadingOptions,
    Shard,
    nothing_usable,
    plan_shards,
    read_documents,
    read_shard,
    text,
)
from vocabtrim_core.errors import CorpusError

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
WHOLE = 2**40


def read_all(shards: list[Shard]) -> tuple[list[tuple], list[BadRecord]]:
    """The content of every document, and what was reported, of all shards in order."""
    bad: list[BadRecord] = []
    contents = []
    for shard in pickle.loads(pickle.dumps(shards)):  # noqa: S301
        for document in read_shard(shard, None, bad.append):
            ids = None if document.ids is None else document.ids.tolist()
            contents.append((document.text, document.messages, ids, shard.bad_record(document.line, "")))
    return contents, bad


def check_cuts(path: Path, target: int) -> int:
    """Compare the shards of `target` bytes with the whole file; gives their number."""
    whole, cut = plan_shards([path], target_bytes=WHOLE), plan_shards([path], target_bytes=target)
    assert len(whole) == 1 and whole[0].name == path.name
    assert read_all(cut) == read_all(whole)
    assert len({shard.key for shard in cut}) == len(cut)
    assert {shard.file for shard in cut} == {path.name}
    if path.suffix not in (".parquet", ".npy"):
        assert sum(shard.bytes for shard in cut) == path.stat().st_size
    return len(cut)


jsonl_lines = st.lists(
    st.one_of(
        st.text(max_size=20).map(lambda value: json.dumps({"text": value}, ensure_ascii=False)),
        st.sampled_from(["", " ", "{bad", '{"text": 5}', "x" * 50, '{"text": "é"}\r']),
    ),
    max_size=15,
)


@same_folder
@given(jsonl_lines, st.integers(1, 80), st.sampled_from(["", "\n", "\n\n"]), st.booleans())
@example(['{"text": "a"}'] * 3, 14, "\n", False)
@example(['{"text": "a"}'] * 3, 13, "\n", False)
def test_jsonl_shards(tmp_path: Path, lines: list[str], target: int, end: str, marked: bool) -> None:
    """Bug: a line at a cut is lost, read twice or reported under another number."""
    path = tmp_path / "a.jsonl"
    content = ("\n".join([*lines, '{"text": "x"}']) + end).encode("utf-8-sig" if marked else "utf-8")
    path.write_bytes(content)
    count = check_cuts(path, target)
    assert count <= content.count(b"\n") + 1
    if target == 1:
        assert count == content.rstrip(b"\n").count(b"\n") + (len(end) or 1)


@same_folder
@given(
    st.lists(st.sampled_from(["word ", "\n", "\n\n", "é", "😀", "\r\n", "\r", "\0", "\ufeff", "x" * 30]), max_size=150),
    st.integers(1, 300),
    st.booleans(),
)
def test_text_shards(tmp_path: Path, parts: list[str], target: int, damaged: bool) -> None:
    """Bug: the blocks that text is cut into depend on the shards, so that counts and held-out text do too."""
    path = tmp_path / "a.txt"
    content = "".join(["start ", *parts]).encode()
    if damaged:
        content = content.replace("é".encode(), b"\xe9", 1) + " ü".encode() * 20
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "PIECE_BYTES", 64)
        patch.setattr("vocabtrim_core.corpora.planning.detect_encoding", lambda *_: ("utf-8", ""))
        check_cuts(path, target)


def test_text_is_cut_where_compressed_text_is(tmp_path: Path, monkeypatch) -> None:
    """Bug: a compressed copy of a text gives other documents, as its cuts are counted otherwise."""
    monkeypatch.setattr(text, "PIECE_BYTES", 64)
    content = "".join(f"line {number} of some text\n" for number in range(100)).encode("utf-8-sig")
    (tmp_path / "a.txt").write_bytes(content)
    plain = [document.text for document in read_documents(CorpusFile("a.txt", content), print)]
    cut = plan_shards([tmp_path / "a.txt"], target_bytes=200)
    assert len(cut) > 5 and "".join(plain) == content.decode("utf-8-sig")
    assert [row[0] for row in read_all(cut)[0]] == plain


@same_folder
@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 3_000))
def test_parquet_shards(tmp_path: Path, rows: int, group: int, target: int) -> None:
    """Bug: a row group lost or read twice; rows numbered from the start of the shard."""
    path = tmp_path / "a.parquet"
    path.write_bytes(records_file([{"text": f"text {row}" * (row % 4)} for row in range(rows + 1)], ".parquet", group))
    check_cuts(path, target)


@same_folder
@given(st.integers(0, 20_000), st.integers(1, 30_000), st.sampled_from(["<u2", "<u4"]), st.booleans())
def test_token_shards(tmp_path: Path, count: int, target: int, dtype: str, as_npy: bool) -> None:
    """Bug: ids at a cut are lost or doubled, or the blocks, and so the held-out ones, depend on the cuts."""
    ids = (np.arange(count + 1) * 7 % 50_000 + 1_000).astype(dtype)
    path = tmp_path / ("a.npy" if as_npy else "a.bin")
    if as_npy:
        np.save(path, ids)
    else:
        path.write_bytes(ids.tobytes())
    check_cuts(path, target)
    contents, bad = read_all(plan_shards([path], target_bytes=target))
    assert [i for row in contents for i in row[2]] == ids.tolist() and not bad


def test_large_jsonl_is_cut_evenly(tmp_path: Path) -> None:
    """Bug: cuts that leave one machine with most of the work."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'{"text": "%d"}\n' % number for number in range(100_000)))
    shards = plan_shards([path], target_bytes=200_000)
    assert [shard.name for shard in shards] == [f"a.jsonl[{n}/{len(shards)}]" for n in range(1, len(shards) + 1)]
    assert max(shard.bytes for shard in shards) < 200_100 and len(shards) == -(-path.stat().st_size // 200_000)


def test_what_is_not_cut(tmp_path: Path) -> None:
    """Bug: a file whose line ends cannot be found in its bytes is cut all the same."""
    (tmp_path / "a.jsonl").write_bytes('{"text": "ਊĊ"}\n'.encode("utf-16") * 50)
    (tmp_path / "b.csv").write_bytes(b"text\n" + b'"two\nlines"\n' * 50)
    (tmp_path / "c.json").write_bytes(json.dumps([{"text": "a"}] * 50).encode())
    assert [shard.name for shard in plan_shards([tmp_path], target_bytes=10)] == [
        f"{tmp_path.name}/{name}" for name in ("a.jsonl", "b.csv", "c.json")
    ]


def test_changed_files_are_refused(tmp_path: Path) -> None:
    """Bug: a file that is written to during the count gives lines of both its versions."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' * 10)
    shards = plan_shards([path], target_bytes=50)
    path.write_text('{"text": "bb"}\n' * 10)
    os.utime(path, ns=(0, 1))
    with pytest.raises(CorpusError, match=r"a\.jsonl was changed"):
        read_all(shards)
    path.unlink()
    with pytest.raises(CorpusError, match=r"a\.jsonl was deleted"):
        read_all(shards)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace_it(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1] + b"x")
    other.replace(path)


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv", ".json", ".arrow", ".parquet", ".jsonl.gz"])
@pytest.mark.parametrize(
    "change, words", [(truncate, "cut shorter"), (Path.unlink, "deleted"), (replace_it, "replaced")]
)
def test_a_change_while_a_file_is_read_is_said(tmp_path: Path, suffix: str, change, words: str) -> None:
    """Bug: half the documents of a file that shrinks, is deleted or replaced are missing almost in silence."""
    path = tmp_path / f"a{suffix}"
    rows = [{"text": f"{number} " + "The cat sat. " * 200} for number in range(600)]
    if suffix == ".txt":
        path.write_text("\n\n".join(row["text"] for row in rows))
    else:
        data = records_file(rows, suffix.removesuffix(".gz"), 50)
        path.write_bytes(gzip.compress(data) if suffix.endswith(".gz") else data)
    (shard,) = plan_shards([path])
    documents = read_shard(shard, None, lambda bad: None)
    next(documents)
    change(path)
    with pytest.raises(CorpusError, match=words) as caught:
        list(documents)
    assert str(caught.value).startswith(path.name) and "\n" not in str(caught.value)


def test_keys_tell_content_apart(tmp_path: Path) -> None:
    """Bug: a resumed count takes the counts of an older version of a file, or of the same bytes in another format."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n')
    (first,) = plan_shards([path])
    assert plan_shards([path])[0].key == first.key
    path.write_text('{"text": "b"}\n')
    os.utime(path, ns=(0, 1))
    assert plan_shards([path])[0].key != first.key
    uploads = [CorpusFile("a.txt", b"text\nx"), CorpusFile("b.txt", b"text\nx"), CorpusFile("a.csv", b"text\nx")]
    keys = [shard.key for shard in plan_shards(uploads)]
    assert keys[0] == keys[1] != keys[2]


def test_bad_shards_of_a_good_file(tmp_path: Path) -> None:
    """Bug: a part without one usable record ends the count, although the file has many."""
    path = tmp_path / "a.jsonl"
    path.write_text("bad\n" * 20 + '{"text": "a"}\n' * 20)
    contents, bad = read_all(plan_shards([path], target_bytes=20))
    assert len(contents) == 20 and [record.line for record in bad] == list(range(1, 21))
    error = nothing_usable("a.jsonl", bad[0])
    assert str(error).startswith("a.jsonl has no usable record; the first problem is in line 1: not valid JSON")


def test_options_reach_every_shard(tmp_path: Path) -> None:
    """Bug: the choice of field or line ends is forgotten when a file is cut."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "no", "mine": "a\\r\\nb"}\n' * 6)
    options = ReadingOptions(field="mine", newlines="keep")
    shards = plan_shards([path], options, target_bytes=1)
    documents = [document for shard in shards for document in read_shard(shard, options, print)]
    assert documents == [Document("a\r\nb", None, 1)] * 6
