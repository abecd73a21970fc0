"""When a small text is ranked with the help of the shipped counts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from pages.components.ranking import THIN_TOKENS, needs_prior
from pages.components.settings import SHIPPED
from vocabtrim_core.shipped import sample_corpora


def corpus(tokens: int) -> SimpleNamespace:
    return SimpleNamespace(counts=SimpleNamespace(calibration=np.array([tokens - 1, 1])))


def test_only_a_small_text_of_ones_own_leans_on_the_shipped_counts() -> None:
    """Bug: 2,600 tokens of text decide which 4,096 are kept; the samples, the shipped counts or a large corpus
    are mixed with others unasked; a tokenizer that nothing is shipped for has something to lean on."""
    sample = next(iter(sample_corpora()))
    corpora = {
        SHIPPED: corpus(10**6),
        sample: corpus(500),
        "mine": corpus(2_600),
        "more": corpus(THIN_TOKENS // 2),
        "large": corpus(THIN_TOKENS),
    }
    assert needs_prior(corpora, ["mine"]) and needs_prior(corpora, ["mine", "more"])
    for used in ([SHIPPED], [sample], ["mine", SHIPPED], ["mine", sample], ["large"], ["large", "mine"]):
        assert not needs_prior(corpora, used), used
    del corpora[SHIPPED]
    assert not needs_prior(corpora, ["mine"])
