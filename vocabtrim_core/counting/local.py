"""The local engine: shards counted by threads, one a core; where there are fewer shards, several of them a shard.

Threads are enough, since reading, decompressing and encoding leave Python's lock free; what is left in Python is a few
nanoseconds a token.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from vocabtrim_core.corpora import Shard
from vocabtrim_core.counting.shard_counts import Job, ShardCounts, count_shard


@dataclass(frozen=True)
class Batch:
    """A part of a shard was counted: how many characters and tokens more."""

    shard: Shard
    characters: int
    tokens: int


@dataclass(frozen=True)
class Finished:
    """A shard was counted."""

    shard: Shard
    counts: ShardCounts


Event = Batch | Finished


def count_locally(shards: Sequence[Shard], job: Job) -> Generator[Event, None, None]:
    """Count `shards` and say so as it goes. Close it to end early; then batches at work are finished first.

    What a thread raises is raised here.
    """
    todo: queue.SimpleQueue[Shard] = queue.SimpleQueue()
    for shard in shards:
        todo.put(shard)
    events: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
    stop = threading.Event()

    def count_next(shard: Shard) -> None:
        def on_batch(characters: int, tokens: int) -> None:
            if stop.is_set():
                raise _StoppedError
            events.put(Batch(shard, characters, tokens))

        events.put(Finished(shard, count_shard(shard, job, on_batch, threads)))

    def work() -> None:
        try:
            while not stop.is_set():
                count_next(todo.get_nowait())
        except (queue.Empty, _StoppedError):
            pass
        except BaseException as error:
            events.put(error)

    at_once = min(usable_cores(), len(shards))
    threads = usable_cores() // at_once
    workers = [threading.Thread(target=work, name=f"count-{i}", daemon=True) for i in range(at_once)]
    for worker in workers:
        worker.start()
    try:
        left = len(shards)
        while left:
            event = events.get()
            if isinstance(event, BaseException):
                raise event
            left -= isinstance(event, Finished)
            yield event
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _StoppedError(Exception):
    """The count was ended early."""
