"""Hostile input of every kind, generated from a seed: `python -m pytest tests/fuzz` takes about two minutes.

Each case is a test with a number, the same at each run, so that one that fails can be run again by itself. For hours
of them: `FUZZ_CASES=20000 FUZZ_SEED=7 python -m pytest tests/fuzz -q -x`. A case may not end in a traceback, in another
exit code than 0, 2 or (`count` with something left out) 3, with more than one line for a mistake, or take more than a
minute or 2 GB.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz.harness import Pantry, Run, memory_bound, stock

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
    return stock(tmp_path_factory.mktemp("pantry"))


@pytest.fixture(autouse=True)
def bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A minute and 2 GB more than before; no network; nothing of the machine's to meet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def too_long(*_: object) -> None:
        pytest.fail(f"more than {SECONDS} seconds", pytrace=True)

    handler = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    with memory_bound(BYTES):
        yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)
