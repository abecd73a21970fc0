"""What is kept for visitors: theirs alone, for a while, and never too much of it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pages.components.shelves import DAY, Shelves

ANNE, BERT = "a" * 43, "b" * 43


def aged(shelves: Shelves, name: str, days: float) -> None:
    (path,) = shelves.root.glob(f"*/{name}")
    then = time.time() - days * DAY
    os.utime(path, (then, then))


@pytest.fixture
def shelves(tmp_path: Path) -> Shelves:
    return Shelves(tmp_path / "visitors", days=7, visitor_bytes=100, total_bytes=250)


def test_each_visitor_gets_their_own(shelves: Shelves) -> None:
    """Bug: a visitor sees what another counted, or the key can be read from the folder's name."""
    assert shelves.put(ANNE, "one", b"1") and shelves.put(BERT, "two", b"2")
    assert shelves.take(ANNE) == {"one": b"1"} and shelves.take(BERT) == {"two": b"2"}
    assert shelves.take("c" * 43) == {}
    assert not any(ANNE in str(path) for path in shelves.root.rglob("*"))
    shelves.remove(ANNE, "one")
    shelves.remove(ANNE, "never there")
    assert shelves.take(ANNE) == {}
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in shelves.root.iterdir())


def test_old_files_go_and_a_visit_makes_them_new(shelves: Shelves) -> None:
    """Bug: files stay for ever, or go while their visitor still comes."""
    shelves.put(ANNE, "old", b"1")
    shelves.put(ANNE, "older", b"2")
    aged(shelves, "old", 6.9)
    aged(shelves, "older", 7.1)
    assert shelves.take(ANNE) == {"old": b"1"}
    (path,) = shelves.root.glob("*/old")
    assert time.time() - path.stat().st_mtime < DAY
    aged(shelves, "old", 8)
    assert shelves.take(BERT) == {} and not list(shelves.root.glob("*/old"))


def test_the_oldest_make_room(shelves: Shelves) -> None:
    """Bug: one visitor fills the disk, or all together do; what was just counted goes before what is old."""
    for number in range(4):
        shelves.put(ANNE, f"a{number}", b"x" * 40)
        aged(shelves, f"a{number}", 4 - number)
    assert list(shelves.take(ANNE)) == ["a2", "a3"]
    assert not shelves.put(ANNE, "large", b"x" * 101) and list(shelves.take(ANNE)) == ["a2", "a3"]
    aged(shelves, "a2", 2)
    aged(shelves, "a3", 1)
    for visitor in (BERT, "c" * 43):
        shelves.put(visitor, "b", b"x" * 100)
    assert list(shelves.take(ANNE)) == ["a3"]
    assert shelves.take(BERT) and shelves.take("c" * 43)


def test_what_is_half_written_is_not_taken(shelves: Shelves) -> None:
    """Bug: a file that a kill left behind, or that is being written, is read."""
    shelves.put(ANNE, "one", b"1")
    (folder,) = shelves.root.iterdir()
    (folder / ".two.x.part").write_bytes(b"half")
    assert shelves.take(ANNE) == {"one": b"1"}


def test_a_folder_without_files_goes_later(shelves: Shelves) -> None:
    """Bug: the folders of all who ever came stay, or one goes while its first file is about to be written."""
    shelves.put(ANNE, "one", b"1")
    shelves.remove(ANNE, "one")
    (folder,) = shelves.root.iterdir()
    replace(shelves).clean()
    assert folder.is_dir()
    os.utime(folder, (0, 0))
    shelves.clean()
    assert not folder.exists()
