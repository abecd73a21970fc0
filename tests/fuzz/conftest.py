"""Hostile input of every kind, generated from a seed: `python -m pytest tests/fuzz` takes about a minute.

Each case is a test with a number, the same at each run, so that one that fails can be run again by itself. For hours
of them: `FUZZ_CASES=20000 FUZZ_SEED=7 python -m pytest tests/fuzz -q -x`. A case may not end in a traceback, in another
exit code than 0 or 2, with more than one line for a mistake, or take more than a minute or 2 GB.
"""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.harness import Pantry, Run
from tiny_models import save_first_layer, save_tiny_llama
from tiny_tokenizer import TEXT, make_tiny_tokenizer

from vocabtrim_core.cli import main

CASES = int(os.environ.get("FUZZ_CASES", "60"))
SEED = os.environ.get("FUZZ_SEED", "0")
SECONDS = 60
BYTES = 2 * 2**30


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "chance" in metafunc.fixturenames:
        metafunc.parametrize("chance", range(CASES), indirect=True)


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """The case's own random generator."""
    return random.Random(f"{SEED} {request.function.__name__} {request.param}")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture(scope="session")
def pantry(tmp_path_factory: pytest.TempPathFactory) -> Pantry:
    root = tmp_path_factory.mktemp("pantry")
    tokenizer = make_tiny_tokenizer(root / "target")
    make_tiny_tokenizer(root / "drafter")
    target = save_tiny_llama(root / "target", tokenizer.vocab_size)
    save_first_layer(target, root / "drafter", tokenizer.vocab_size)
    (root / "corpus.txt").write_text(TEXT * 50)
    (root / "prompts.jsonl").write_text('{"prompt": "The dog"}\n{"prompt": "The cat"}\n')
    counts = root / "counts.npz"
    assert main(["count", str(root / "corpus.txt"), "--tokenizer", str(root / "target"), "--out", str(counts)]) == 0
    return Pantry(root / "target", root / "drafter", counts, root / "corpus.txt", root / "prompts.jsonl")


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A minute and 2 GB more than before; no network; nothing of the machine's to meet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, before[1]))

    def too_long(*_: object) -> None:
        pytest.fail(f"more than {SECONDS} seconds", pytrace=True)

    handler = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
    resource.setrlimit(resource.RLIMIT_AS, before)
