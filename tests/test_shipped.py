"""Data that comes with the project."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_tokenizer import make_tiny_tokenizer

from vocabtrim_core.corpora import read_file
from vocabtrim_core.counting import TokenCounts, count_files
from vocabtrim_core.coverage import MIN_GROUPS
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.number_format import DTYPES
from vocabtrim_core.shipped import sample_corpora, sample_corpus_path, shipped_counts_path, shipped_tuning
from vocabtrim_core.trees import DraftShape


@pytest.mark.parametrize("name", sample_corpora())
def test_sample_corpora(name: str, tmp_path: Path) -> None:
    """Bug: a bad line, or too few documents for an interval, in what every page shows first."""
    counts = count_files([read_file(sample_corpora()[name])], make_tiny_tokenizer(tmp_path / "t"))
    assert counts.bad_record_count == 0 and counts.documents >= 100
    assert np.count_nonzero(counts.held_out_groups.any(axis=1)) >= MIN_GROUPS


def test_paths() -> None:
    """Bug: a file that was moved or renamed."""
    assert sample_corpus_path() in sample_corpora().values()
    assert TokenCounts.load(shipped_counts_path()).distinct > 20_000


@pytest.mark.parametrize("name", DTYPES)
def test_tunings(name: str) -> None:
    """Bug: a tuning that nobody can decode with; one without the machine, the commit and the command behind it."""
    tuned = shipped_tuning(name)
    assert tuned.k > 0
    settings = GenerationSettings(tuned.gamma, tree=DraftShape(*tuned.tree) if tuned.tree else None)
    assert settings.shape.most_nodes >= 1
    stored = json.loads((Path(shipped_counts_path()).parents[1] / "tunings.json").read_text())[name]
    assert stored["speedup_vs_vanilla"] > 1 and all(stored[part] for part in ("machine", "commit", "command"))
    assert shipped_tuning("float64") == shipped_tuning("float32")
