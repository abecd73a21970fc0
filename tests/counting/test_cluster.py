"""The Ray engine: a real cluster of two worker processes, the same counts bit for bit, whatever happens to a worker."""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counting.helpers import same
from tests.tiny_tokenizer import make_tiny_tokenizer
from vocabtrim_core.corpora import plan_shards
from vocabtrim_core.counting import cluster, count_shards, run_count
from vocabtrim_core.errors import CorpusError, SettingError
from vocabtrim_core.tokenization import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def workers() -> Iterator[set[int]]:
    """A cluster on this machine with two cores: the process ids of its two workers, which are warm."""
    pytest.importorskip("ray")

    def warm_up() -> int:
        import vocabtrim_core.counting  # noqa: F401

        time.sleep(1)  # so that the other core, too, starts a worker
        return os.getpid()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "usable_cores", lambda: 2)
        with cluster._connected(None) as ray:
            yield set(ray.get([ray.remote(num_cpus=1)(warm_up).remote() for _ in range(2)]))


def write_corpus(folder: Path, files: int) -> Path:
    rng = random.Random(0)
    folder.mkdir()
    for number in range(files):
        lines = [json.dumps({"text": f"The {rng.random()} cat sat.\n" * 50}) for _ in range(300)]
        (folder / f"{number:02}.jsonl").write_text("\n".join([*lines, "oops"]))
    return folder


def busy_workers() -> list[int]:
    """The worker processes of this process' own cluster that are at work on a task of ours."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                title = (entry / "cmdline").read_bytes()
                if title.startswith(b"ray::_count") and parent(parent(int(entry.name))) == os.getpid():
                    found.append(int(entry.name))
            except (OSError, ValueError):
                continue
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="finds worker processes in /proc")
def test_a_killed_worker_is_made_up_for(tmp_path: Path, tokenizer: Tokenizer, workers: set[int]) -> None:
    """Bug: the blocks of a lost worker are missing from the counts, or are in them twice."""
    assert len(workers) == 2
    shards = plan_shards([write_corpus(tmp_path / "corpus", files=10)])
    killed: list[int] = []

    def kill_one(share: float, message: str) -> None:
        if not killed and (busy := busy_workers()):
            os.kill(busy[0], signal.SIGKILL)
            killed.append(busy[0])

    counted = run_count(shards, tokenizer, engine="ray", on_progress=kill_one)
    assert len(killed) == 1 and set(killed) < workers
    assert same(counted.counts, count_shards(shards, tokenizer))
    assert counted.counts.documents == 3000 and counted.counts.bad_record_count == 10


@pytest.mark.usefixtures("workers")
def test_both_engines_share_their_state(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Bug: what a cluster counted cannot be resumed on one machine, or a cancelled count on a cluster keeps nothing."""
    shards = plan_shards([write_corpus(tmp_path / "corpus", files=4)])
    state = tmp_path / "state"

    class StoppedError(Exception):
        pass

    def stop(share: float, message: str) -> None:
        if share > 0.3:
            raise StoppedError

    with pytest.raises(StoppedError):
        run_count(shards, tokenizer, engine="ray", state_folder=state, on_progress=stop)
    again = run_count(shards, tokenizer, engine="local", state_folder=state)
    assert 0 < again.resumed_shards < 4 and same(again.counts, count_shards(shards, tokenizer))


@pytest.mark.usefixtures("workers")
def test_a_mistake_on_a_worker_is_told_in_its_own_words(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Bug: a file that vanished surfaces as a page of Ray's traceback."""
    corpus = write_corpus(tmp_path / "corpus", files=2)
    shards = plan_shards([corpus / "00.jsonl", corpus / "01.jsonl"])
    (corpus / "01.jsonl").unlink()
    with pytest.raises(CorpusError) as raised:
        run_count(shards, tokenizer, engine="ray")
    assert type(raised.value) is CorpusError and str(raised.value).startswith("01.jsonl")
    assert len(str(raised.value).splitlines()) == 1


def test_without_ray(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: an ImportError's traceback where the optional package is not installed."""
    monkeypatch.setitem(sys.modules, "ray", None)
    shards = plan_shards([write_corpus(tmp_path / "corpus", files=1)])
    with pytest.raises(SettingError, match=r"needs the package ray.*requirements-corpus\.txt"):
        run_count(shards, tokenizer, engine="ray")
