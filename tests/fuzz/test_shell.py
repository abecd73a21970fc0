"""A few cases as a program of their own, in 4 GB of addresses (torch alone has 2)."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz.harness import Pantry

ROOT = Path(__file__).parent.parent.parent
BYTES = 4 * 2**30
CASES = {
    "a list without end": ["coverage", "{counts}", "--list", "/dev/zero", "--tokenizer", "{target}"],
    "a folder without a model": ["generate", "--prompt", "x", "--target", "{target}", "--drafter", "."],
}


@pytest.mark.parametrize("name", CASES)
def test_as_a_program(name: str, pantry: Pantry) -> None:
    """Bug: what is refused in the end takes gigabytes first."""
    arguments = [part.format(counts=pantry.counts, target=pantry.target) for part in CASES[name]]
    done = subprocess.run(
        [sys.executable, "-m", "vocabtrim_core", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES)),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("vocabtrim_core: "), done.stderr
