"""The Ray engine: shards counted by the worker processes of a cluster, on one machine or many.

One Ray task a shard, which opens its part of the corpus itself and hands back a histogram of a megabyte or so: tokens
never travel. Tasks rather than a Ray Data pipeline, since there are no rows to move, batch or shuffle between stages;
a task has exactly one result however often a lost worker makes Ray run it again, so nothing is lost or counted twice,
and each result can be kept at once for a run that is resumed.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import vocabtrim_core
from vocabtrim_core.corpora import Shard
from vocabtrim_core.counting.local import Finished, usable_cores
from vocabtrim_core.counting.proof import encoding_proof
from vocabtrim_core.counting.shard_counts import Job, ShardCounts, count_shard
from vocabtrim_core.errors import SettingError, TokenizerError, VocabTrimError

MAX_RETRIES = 5  # of a shard whose worker was lost
TASKS_A_CORE = 2  # at work or waiting, so that no core waits for its next shard
OBJECT_STORE_BYTES = 512 * 2**20  # of a local cluster: room for the tokenizer and finished histograms


def count_on_ray(shards: Sequence[Shard], job: Job, address: str | None = None) -> Generator[Finished, None, None]:
    """Count `shards` on the Ray cluster at `address` (or the one that RAY_ADDRESS names), else on one made here.

    A worker must be able to open the paths of the shards: on several machines they are in a shared folder. Every worker
    proves that it encodes as this process does before it counts. Close it to end early.
    Raises SettingError where Ray is not installed or the cluster cannot be reached, TokenizerError where a worker
    encodes differently, and what `count_shard` raises on a worker.
    """
    with _connected(address) as ray:
        task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_count)
        # In a list it travels as a reference, which a worker process follows once, not with every task.
        shared = [ray.put(job), encoding_proof(job)]
        todo = iter(shards)
        running: dict[Any, Shard] = {}
        try:
            while True:
                room = TASKS_A_CORE * max(1, int(ray.cluster_resources().get("CPU", 1))) - len(running)
                for shard in itertools.islice(todo, room):
                    running[task.remote(shard, shared)] = shard
                if not running:
                    return
                for done in ray.wait(list(running), timeout=1.0)[0]:
                    shard = running.pop(done)
                    yield Finished(shard, _result(ray, done, shard))
        finally:
            for reference in running:
                ray.cancel(reference, force=True)


def _count(shard: Shard, shared: list) -> ShardCounts:
    """What a worker does. It has one core, so its libraries get one thread each."""
    os.environ.setdefault("RAYON_NUM_THREADS", "1")
    return count_shard(shard, _job(*shared))


# A reference is equal to itself in the tasks of one count; the tokenizer takes seconds to unpack.
@lru_cache(maxsize=1)
def _job(reference: Any, proof: str) -> Job:
    """The job, once it encodes here as it does where it comes from. TokenizerError where it does not."""
    import ray

    job = ray.get(reference)
    if encoding_proof(job) != proof:
        raise TokenizerError(
            f"The worker on {socket.gethostname()} encodes text differently from this machine, so nothing was counted "
            "there. Install the same versions of this program's packages on all machines, or use the local engine."
        )
    return job


def _result(ray: Any, done: Any, shard: Shard) -> ShardCounts:
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, VocabTrimError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        return ShardCounts.nothing(
            f"The cluster lost the worker that counted {shard.name}, {MAX_RETRIES + 1} times in a row "
            f"({type(error).__name__}); look into the cluster's logs, as a machine may be out of memory."
        )


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """The `ray` module, connected; a connection that is made here ends with it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise SettingError(
            "The engine `ray` needs the package ray. Install it with `pip install -r requirements-corpus.txt`, or use "
            "the local engine."
        ) from None
    if ray.is_initialized():
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS")
    # Workers need this code: those of a cluster get a copy, since they may run on other machines.
    package = Path(vocabtrim_core.__file__).parent
    if address:
        options: dict[str, Any] = {"address": address, "runtime_env": {"py_modules": [str(package)]}}
    else:
        path = os.pathsep.join([str(package.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        options = {
            "num_cpus": usable_cores(),
            "object_store_memory": OBJECT_STORE_BYTES,
            "include_dashboard": False,
            "runtime_env": {"env_vars": {"PYTHONPATH": path}},
        }
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        if address:
            raise SettingError(
                f"The Ray cluster at {address} cannot be reached: {reason}. Check the address; if the cluster asks for "
                "a token, set RAY_AUTH_MODE=token."
            ) from None
        raise SettingError(f"A local Ray cluster cannot be started: {reason}. Use the local engine.") from None
    try:
        yield ray
    finally:
        ray.shutdown()
