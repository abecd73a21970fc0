"""Documents in batches, read in a thread of their own while earlier ones are counted by one or several others."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar, cast

from vocabtrim_core.corpora import Document
from vocabtrim_core.corpora.messages import texts_of

T = TypeVar("T")

MAX_BATCH_DOCUMENTS = 50_000
_POLL_SECONDS = 0.1
_END = object()


def batches(documents: Iterable[Document], characters: int) -> Generator[tuple[list[Document], int], None, None]:
    """Runs of documents of about `characters` together, each with its size in characters (4 for a token id)."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += _size(document)
        if size >= characters or len(batch) >= MAX_BATCH_DOCUMENTS:
            yield batch, size
            batch, size = [], 0
    if batch:
        yield batch, size


def read_ahead(items: Generator[T, None, None], depth: int = 1) -> Generator[T, None, None]:
    """`items`, fetched by a thread that is at most `depth` + 1 of them ahead. Close it to end the thread early."""
    waiting: queue.Queue = queue.Queue(depth)
    stop = threading.Event()

    def offer(item: object) -> bool:
        while not stop.is_set():
            try:
                waiting.put(item, timeout=_POLL_SECONDS)
                return True
            except queue.Full:
                pass
        return False

    def fetch() -> None:
        try:
            with closing(items):
                for item in items:
                    if not offer(item):
                        return
            offer(_END)
        # Whatever it is, it is raised where the items are used.
        except BaseException as error:
            offer(_Failure(error))

    thread = threading.Thread(target=fetch, name="read-ahead", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not _END:
            if isinstance(item, _Failure):
                raise item.error
            yield item
    finally:
        stop.set()
        thread.join()


def share_out(items: Iterator[T], use: Callable[[T], None], threads: int) -> None:
    """Call `use` on each of `items`, in this thread or in so many others. What one of them raises ends all."""
    if threads == 1:
        for item in items:
            use(item)
        return
    taking = threading.Lock()
    failed = threading.Event()

    def work() -> None:
        try:
            while not failed.is_set():
                with taking:
                    item = next(items, _END)
                if item is _END:
                    return
                use(cast(T, item))
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error


def _size(document: Document) -> int:
    if document.text is not None:
        return len(document.text)
    if document.messages is not None:
        return sum(
            len(message["content"]) if len(message) == 2 else sum(map(len, texts_of([message])))
            for message in document.messages
        )
    assert document.ids is not None
    return 4 * len(document.ids)
