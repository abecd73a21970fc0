"""Which files a corpus has: folders, globs, uploads, saved data sets, each file once."""

import bz2
import json
import lzma
import os
from pathlib import Path

import datasets
import pytest

from vocabtrim_core.corpora import BadRecord, CorpusFile, HubDataset, LeftOut, Shard, plan_shards, read_shard
from vocabtrim_core.corpora.hub_datasets import parse_hub_dataset
from vocabtrim_core.errors import CorpusError, SettingError


def files_of(*sources: object) -> list[str]:
    return [shard.file for shard in plan_shards(sources)]  # type: ignore[arg-type]


def texts_of(shards: list[Shard]) -> list[str | None]:
    return [document.text for shard in shards for document in read_shard(shard, None, print)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder of source code, as it comes."""
    root = tmp_path / "project"
    for name, content in {
        "b.py": "print(1)\n",
        "a.md": "# Title\n",
        "src/main.rs": "fn main() {}\n",
        "src/empty.py": "",
        "src/data.bin": "\1\0\2\0",
        "package.json": '{"name": "x"}',
        "picture.png": "\x89PNG",
        ".git/config.txt": "hidden",
        ".hidden.txt": "hidden",
        "broken.txt": "\0\1\2",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_folders(project: Path) -> None:
    """Bug: hidden folders, pictures or programs are counted; an empty or binary file in a folder ends the count."""
    (project / "linked").symlink_to(project.parent / "elsewhere")
    (project.parent / "elsewhere").mkdir()
    (project.parent / "elsewhere" / "c.txt").write_text("linked")
    (project / "circle").symlink_to(project)
    (project / "circle.txt").symlink_to(project / "circle.txt")
    left_out: list[LeftOut] = []
    shards = plan_shards([project], on_left_out=left_out.append)
    assert [shard.file for shard in shards] == [
        "project/a.md",
        "project/b.py",
        "project/package.json",
        "project/linked/c.txt",
        "project/src/main.rs",
    ]
    assert [each.file for each in left_out] == [
        "project/broken.txt",
        "project/circle.txt",
        "project/src/empty.py",
        str(project),
    ]
    assert [each.serious for each in left_out] == [False, True, False, False]
    assert left_out[-1].reason.endswith("2 files of kinds that are not looked for there (1 .png, 1 .bin).")
    assert all(not shard.named for shard in shards)
    assert texts_of(shards[:2]) == ["# Title\n", "print(1)\n"]
    found: list[BadRecord] = []
    assert list(read_shard(shards[2], None, found.append)) == [] and "`name`" in found[0].reason


def test_compressed_files_in_a_folder(tmp_path: Path) -> None:
    """Bug: the .xz and .bz2 files of a folder are passed over without a word."""
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"one"))
    (tmp_path / "b.txt.bz2").write_bytes(bz2.compress(b"two"))
    (tmp_path / "c.txt.lz4").write_bytes(b"three")
    left_out: list[LeftOut] = []
    assert texts_of(plan_shards([tmp_path], on_left_out=left_out.append)) == ["one", "two"]
    assert "1 file of kinds that are not looked for there (1 .lz4)" in left_out[0].reason


def test_an_empty_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: `count "$UNSET"` counts the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    for name in ("", " "):
        with pytest.raises(CorpusError, match="empty name"):
            plan_shards([name])


def test_globs(project: Path) -> None:
    """Bug: a pattern that the shell left alone is taken for a file name; token files cannot be reached by one."""
    assert files_of(f"{project}/**/*.rs") == [f"{project}/src/main.rs"]
    assert files_of(f"{project}/*.[pm][yd]") == [f"{project}/a.md", f"{project}/b.py"]
    assert files_of(f"{project}/src/*.bin") == [f"{project}/src/data.bin"]
    assert "src/main.rs" in files_of(f"{project}/s*")
    with pytest.raises(CorpusError, match="No file matches"):
        plan_shards([f"{project}/*.csv"])
    (project / "odd[1].txt").write_text("x")
    assert files_of(f"{project}/odd[1].txt") == ["odd[1].txt"]


def test_a_file_is_read_once(project: Path) -> None:
    """Bug: a file in a folder and named beside it, or linked, is counted twice."""
    (project / "link.md").symlink_to(project / "a.md")
    names = files_of(project / "a.md", project, f"{project}/*.md", str(project / "src" / ".." / "a.md"))
    assert names.count("a.md") == 1 and not any(name.endswith(("/a.md", "link.md")) for name in names)


def test_files_of_the_same_name(tmp_path: Path) -> None:
    """Bug: two files of one name are reported, and their documents added up, as one."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(folder)
    uploads = [CorpusFile("a.txt", b"three"), CorpusFile("a.txt", b"four")]
    shards = plan_shards([tmp_path / "one" / "a.txt", tmp_path / "two" / "a.txt", *uploads])
    names = ["a.txt", str(tmp_path / "two" / "a.txt"), "a.txt (2)", "a.txt (3)"]
    assert [shard.file for shard in shards] == [shard.name for shard in shards] == names
    assert texts_of(shards) == ["one", "two", "three", "four"]


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("none.txt", None, "does not exist"),
        ("a.pdf", b"text", "a.pdf is of a kind that is not known"),
        ("noext", b"text", "noext"),
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", b"\x7fELF\0", "a.txt looks like a binary file"),
        ("a.gz", b"text", "a.gz is of a kind"),
        ("a.parquet", b"text", "a.parquet cannot be read"),
    ],
)
def test_named_files_must_be_usable(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    """Bug: a file that the user named is left out without an error."""
    (tmp_path / "good.txt").write_text("good")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=words):
        plan_shards([tmp_path / "good.txt", tmp_path / name])


def test_nothing_usable(tmp_path: Path) -> None:
    """Bug: an empty folder gives an empty count."""
    with pytest.raises(CorpusError, match="nothing to read"):
        plan_shards([tmp_path])
    with pytest.raises(CorpusError, match="nothing to read"):
        plan_shards([])
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(CorpusError, match=r"first problem: .*a\.txt is empty"):
        plan_shards([tmp_path])
    with pytest.raises(CorpusError, match="cannot be read"):
        plan_shards(["a\0b.txt"])


@pytest.mark.skipif(os.geteuid() == 0, reason="the administrator may read everything")
def test_files_without_permission(tmp_path: Path) -> None:
    """Bug: a file that may not be read ends in a traceback."""
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(CorpusError, match="cannot be read"):
        plan_shards([tmp_path / "a.txt"])


def test_damage_in_found_files_is_reported(tmp_path: Path) -> None:
    """Bug: one download that was cut, among a thousand files in a folder, ends a count of hours."""
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "b.arrow").write_bytes(b"ARROW1\0\0damage")
    (tmp_path / "c.txt.gz").write_bytes(b"\x1f\x8b\x08\0")
    left_out: list[LeftOut] = []
    good, damaged = plan_shards([tmp_path], on_left_out=left_out.append)
    assert texts_of([good]) == ["good"] and [os.path.basename(each.file) for each in left_out] == ["c.txt.gz"]
    with pytest.raises(CorpusError, match=r"b\.arrow"):
        texts_of([damaged])


# Data sets


def test_saved_data_sets(tmp_path: Path) -> None:
    """Bug: a data set saved by `datasets` is not known, or its notes and caches are read as records."""
    split = datasets.Dataset.from_dict({"text": [f"text {n}" for n in range(10)]})
    saved = split.filter(lambda row: row["text"] != "text 3")
    datasets.DatasetDict({"train": saved, "test": split.select([0])}).save_to_disk(
        tmp_path / "saved", num_shards={"train": 2, "test": 1}
    )
    (tmp_path / "saved" / "train" / "cache-1.arrow").write_bytes(b"junk")
    expected = [f"text {n}" for n in range(10) if n != 3]
    assert texts_of(plan_shards([tmp_path / "saved" / "train"])) == expected
    assert texts_of(plan_shards([tmp_path / "saved"])) == ["text 0", *expected]


def test_data_sets_by_name(tmp_path: Path) -> None:
    """Bug: parts of a streamed data set overlap or leave rows out; a bad row is reported without its part."""
    for part in range(3):
        rows = [json.dumps({"text": f"{part} {row}" if row else "", "n": row}) for row in range(4)]
        (tmp_path / f"{part}.jsonl").write_text("\n".join(rows))
    shards = plan_shards([HubDataset(str(tmp_path))])
    assert len(shards) == 3 and len({shard.key for shard in shards}) == 3
    bad: list[BadRecord] = []
    texts = [document.text for shard in shards for document in read_shard(shard, None, bad.append)]
    assert sorted(texts) == [f"{part} {row}" for part in range(3) for row in range(1, 4)]
    assert [(record.file, record.line) for record in bad] == [(shard.name, 1) for shard in shards]
    assert plan_shards([f"hf:{tmp_path}:train"])[0].key == shards[0].key


def test_data_sets_that_are_not_there(tmp_path: Path) -> None:
    """Bug: a wrong name or split is a traceback of a library."""
    (tmp_path / "a.jsonl").write_text('{"title": "x"}')
    with pytest.raises(CorpusError, match=r"The data set .* \(nosplit\) cannot be read"):
        plan_shards([HubDataset(str(tmp_path), split="nosplit")])
    bad: list[BadRecord] = []
    (shard,) = plan_shards([HubDataset(str(tmp_path))])
    assert list(read_shard(shard, None, bad.append)) == [] and "`title`" in bad[0].reason


def test_names_of_data_sets() -> None:
    """Bug: a configuration is taken for a split."""
    assert parse_hub_dataset("hf:org/name") == HubDataset("org/name")
    assert parse_hub_dataset("hf:org/name:test") == HubDataset("org/name", None, "test")
    assert parse_hub_dataset("hf:org/name:en:train") == HubDataset("org/name", "en", "train")
    for text in ("hf:", "hf:a:b:c:d", "hf:a::b"):
        with pytest.raises(SettingError, match="names no data set"):
            parse_hub_dataset(text)
