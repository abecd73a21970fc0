"""Resuming: a count that was killed at any moment ends as an undisturbed one; nothing is reused for anything else."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import filelock
import pytest

from tests.counting.helpers import same
from tests.tiny_tokenizer import TEXT, make_tiny_tokenizer
from vocabtrim_core.corpora import CorpusFile, ReadingOptions, plan_shards
from vocabtrim_core.counting import TokenCounts, count_shards, run_count, shard_counts
from vocabtrim_core.counting.shard_counts import Job
from vocabtrim_core.counting.state import shard_key
from vocabtrim_core.errors import CorpusError, SettingError
from vocabtrim_core.fast_tokenization import Encoders, fast_version
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


def write_corpus(folder: Path, files: int, documents: int) -> Path:
    """Files of different documents, some bad lines and a chat in each."""
    rng = random.Random(0)
    folder.mkdir()
    for number in range(files):
        lines = [
            json.dumps({"text": f"The {rng.random()} cat sat.\n" * rng.randrange(1, 30)}) for _ in range(documents)
        ]
        chat = {"messages": [{"role": "user", "content": f"Hi {number}"}, {"role": "assistant", "content": "Hello."}]}
        (folder / f"{number:02}.jsonl").write_text("\n".join([*lines, "oops", json.dumps(chat)]))
    return folder


class StoppedError(Exception):
    pass


def stop_at(share: float):
    def on_progress(done: float, message: str) -> None:
        if done > share:
            raise StoppedError

    return on_progress


def test_killed_and_run_again(tmp_path: Path) -> None:
    """Bug: a kill leaves a half-written file that is taken for counts, a part that is counted twice or never, or counts
    that differ from an undisturbed run's in a single bit."""
    corpus = write_corpus(tmp_path / "corpus", files=30, documents=120)
    make_tiny_tokenizer(tmp_path / "tokenizer")
    undisturbed = count_shards(plan_shards([corpus]), load_tokenizer(tmp_path / "tokenizer"))
    state, out = tmp_path / "state", tmp_path / "counts.npz"
    command = [sys.executable, "-m", "vocabtrim_core", "count", str(corpus), "--tokenizer", str(tmp_path / "tokenizer")]
    command += ["--resume", str(state), "--out", str(out), "--json"]
    rng = random.Random(1)
    finished = 0
    for _ in range(3):
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while len(list(state.glob("*.npz"))) <= finished and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        finished = len(list(state.glob("*.npz")))
    assert finished > 0
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    assert result["parts"] == 30 and result["resumed_parts"] == finished
    assert same(TokenCounts.load(out), undisturbed)
    assert sorted(path.suffix for path in state.iterdir() if path.name != ".lock") == [".npz"] * 30


def test_resumed_parts_are_not_counted_again(tmp_path: Path, tokenizer: Tokenizer, monkeypatch) -> None:
    """Bug: resuming reads everything once more; a cancelled count keeps nothing."""
    shards = plan_shards([write_corpus(tmp_path / "corpus", files=8, documents=20)])
    whole = count_shards(shards, tokenizer)
    with pytest.raises(StoppedError):
        run_count(shards, tokenizer, state_folder=tmp_path / "state", on_progress=stop_at(0.4))
    kept = len(list((tmp_path / "state").glob("*.npz")))
    again = run_count(shards, tokenizer, state_folder=tmp_path / "state")
    assert 0 < kept < 8 and again.resumed_shards == kept and same(again.counts, whole)
    assert 0 < again.counted_tokens < whole.tokens
    monkeypatch.setattr(shard_counts, "read_shard", None)
    shares: list[float] = []
    third = run_count(
        shards, tokenizer, state_folder=tmp_path / "state", on_progress=lambda share, _: shares.append(share)
    )
    assert third.resumed_shards == 8 and third.counted_tokens == 0 and same(third.counts, whole)
    assert shares == sorted(shares) and shares[-1] == 1


def test_a_damaged_or_foreign_part_is_counted_again(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Bug: a part of a file, or another shard's file under this one's name, is taken for its counts."""
    shards = plan_shards([write_corpus(tmp_path / "corpus", files=5, documents=5)])
    state = tmp_path / "state"
    whole = count_shards(shards, tokenizer, state_folder=state)
    first, second, third, fourth, _ = sorted(state.glob("*.npz"))
    first.write_bytes(first.read_bytes()[:-40])
    second.write_bytes(b"")
    third.write_bytes(fourth.read_bytes())
    (state / ".vocabtrim-part-x").write_bytes(b"half")
    (state / ".mine.part").write_bytes(b"not ours")
    again = run_count(shards, tokenizer, state_folder=state)
    assert again.resumed_shards == 2 and same(again.counts, whole)
    assert sorted(path.name for path in state.glob(".*")) == [".lock", ".mine.part"]


def test_the_key_is_all_that_counts_depend_on(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Bug: counts are reused for another tokenizer, template, corpus, option or held-out share."""
    other_words = make_tiny_tokenizer(tmp_path / "words", text=TEXT + "A bird came by. " * 9)
    other_template = make_tiny_tokenizer(tmp_path / "template", chat_template="{{ messages[0]['content'] }}")
    make_tiny_tokenizer(tmp_path / "bos")
    config = tmp_path / "bos" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "bos_token": "<|endoftext|>"}))
    other_bos = load_tokenizer(tmp_path / "bos")
    assert other_bos.fingerprint == tokenizer.fingerprint  # the text of BOS is known to templates only

    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "The cat"}\n' * 2)
    (shard,) = plan_shards([path])
    path.write_text('{"text": "The dog"}\n' * 2)
    (changed,) = plan_shards([path])
    (upload,) = plan_shards([CorpusFile("a.jsonl", path.read_bytes())])
    (other_upload,) = plan_shards([CorpusFile("a.jsonl", path.read_bytes().replace(b"dog", b"cat"))])

    options = ReadingOptions()
    job = Job(Encoders(tokenizer, fast=False), options, 0.1)
    jobs = [
        job,
        *(replace(job, encoders=Encoders(each, fast=False)) for each in (other_words, other_template, other_bos)),
        replace(job, holdout=0.2),
        replace(job, options=replace(options, field="body")),
        replace(job, options=replace(options, roles="assistant")),
        replace(job, options=replace(options, newlines="keep")),
        replace(job, options=replace(options, encoding="latin-1")),
        replace(job, options=replace(options, token_dtype="uint16")),
    ]
    if fast_version():
        jobs.append(replace(job, encoders=Encoders(tokenizer, fast=True)))
    shards = [shard, changed, upload, other_upload, replace(shard, named=False), replace(shard, name="b")]
    keys = [shard_key(each, job) for each in shards] + [shard_key(shard, each) for each in jobs[1:]]
    assert len(set(keys)) == len(keys)
    assert shard_key(shard, Job(Encoders(tokenizer, fast=False), ReadingOptions(), 0.1)) == keys[0]


def test_one_folder_serves_many_counts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Bug: a folder that was used for one tokenizer or corpus spoils the next count in it."""
    other = make_tiny_tokenizer(tmp_path / "words", text=TEXT + "A bird came by. " * 9)
    shards = plan_shards([write_corpus(tmp_path / "corpus", files=3, documents=5)])
    state = tmp_path / "state"
    for each, holdout, options in (
        (tokenizer, 0.1, ReadingOptions()),
        (other, 0.1, ReadingOptions()),
        (tokenizer, 0.5, ReadingOptions()),
        (tokenizer, 0.1, ReadingOptions(roles="assistant")),
    ):
        counted = run_count(shards, each, options, holdout, state_folder=state)
        assert counted.resumed_shards == 0 and same(counted.counts, count_shards(shards, each, options, holdout))


def test_one_count_at_a_time(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Bug: two counts in one folder take away each other's unfinished files."""
    shards = plan_shards([CorpusFile("a.txt", b"The cat")])
    (tmp_path / "state").mkdir()
    with filelock.FileLock(tmp_path / "state" / ".lock"), pytest.raises(SettingError, match="Another count uses"):
        count_shards(shards, tokenizer, state_folder=tmp_path / "state")
    assert count_shards(shards, tokenizer, state_folder=tmp_path / "state").tokens


def test_a_folder_that_cannot_be_used(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Bug: a traceback where the folder is a file."""
    (tmp_path / "state").write_text("")
    with pytest.raises(CorpusError, match="cannot be used to resume"):
        count_shards(plan_shards([CorpusFile("a.txt", b"The cat")]), tokenizer, state_folder=tmp_path / "state")
