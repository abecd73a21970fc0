"""Batches read ahead: nothing lost, nothing left running, errors where they belong."""

import threading
import time
from collections.abc import Generator
from contextlib import closing

import numpy as np
import pytest

from vocabtrim_core.corpora import Document
from vocabtrim_core.counting import batching
from vocabtrim_core.counting.batching import batches, read_ahead, share_out


def numbers(count: int, made: list[int]) -> Generator[int, None, None]:
    for i in range(count):
        made.append(i)
        yield i


def test_batches_keep_every_document_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the last batch is lost; a million empty or tiny documents make one batch."""
    documents = [
        Document("x" * 30, None),
        Document(None, ({"role": "user", "content": "y" * 90},)),
        Document(None, None, 1, np.arange(40)),
        Document("z", None),
        Document("", None),
    ]
    assert [size for _, size in batches(documents, 100)] == [120, 160, 1]
    assert [document for batch, _ in batches(documents, 100) for document in batch] == documents
    monkeypatch.setattr(batching, "MAX_BATCH_DOCUMENTS", 2)
    assert [len(batch) for batch, _ in batches(documents, 10**9)] == [2, 2, 1]


def test_read_ahead_is_bounded_and_complete() -> None:
    """Bug: a reader that is faster than the counting fills the memory."""
    made: list[int] = []
    ahead = read_ahead(numbers(20, made), depth=2)
    assert next(ahead) == 0
    time.sleep(0.3)
    assert len(made) <= 4
    assert [0, *ahead] == list(range(20))


def test_read_ahead_ends_its_thread_when_closed() -> None:
    """Bug: a cancelled count leaves threads that hold files open and wait for ever."""
    closed = threading.Event()

    def endless() -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            closed.set()

    before = threading.active_count()
    ahead = read_ahead(endless())
    next(ahead)
    ahead.close()
    assert closed.is_set() and threading.active_count() == before


def test_read_ahead_raises_what_the_reader_raised() -> None:
    """Bug: a file that cannot be read further ends the count as if it had ended."""

    def broken() -> Generator[int, None, None]:
        yield 1
        raise OSError("gone")

    ahead = read_ahead(broken())
    assert next(ahead) == 1
    with pytest.raises(OSError, match="gone"):
        next(ahead)


@pytest.mark.parametrize("threads", [1, 3])
def test_every_item_is_used_once(threads: int) -> None:
    """Bug: two threads take the same batch, or one is dropped between them."""
    made: list[int] = []
    used: list[int] = []
    with closing(read_ahead(numbers(500, made))) as ahead:
        share_out(ahead, used.append, threads)
    assert sorted(used) == made == list(range(500))


@pytest.mark.parametrize("threads", [1, 3])
def test_what_one_thread_raises_ends_all(threads: int) -> None:
    """Bug: an error in one of several threads is lost with it, and the counts are short."""
    made: list[int] = []

    def use(item: int) -> None:
        if item == 5:
            raise KeyError(item)

    before = threading.active_count()
    with pytest.raises(KeyError), closing(read_ahead(numbers(10**9, made))) as ahead:
        share_out(ahead, use, threads)
    assert len(made) < 100 and threading.active_count() == before
