"""What to rank by where one histogram will not do: a mixture of several corpora, and a thin one leaning on another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.errors import SettingError, TokenizerError


def mixed_shares(
    corpora: Sequence[TokenCounts], weights: Sequence[float], prior: TokenCounts | None = None
) -> np.ndarray:
    """float64[V], summing to 1: how often each token occurs in calibration text mixed in these proportions.

    Each corpus is brought to shares first, so that a weight says how much of the traffic it stands for, whatever the
    size of its sample; where there is a `prior`, each is smoothed with it (`smoothed_shares`). Only the proportions
    of the weights matter. TokenizerError where the tokenizers differ, SettingError for weights that are negative or
    all zero, and for a corpus with a weight but no calibration text.
    """
    if not corpora or len(corpora) != len(weights):
        raise SettingError("A mixture needs one weight for each of its corpora, and at least one corpus.")
    check_same_tokenizer([*corpora, *([prior] if prior else [])])
    shares = proportions(weights)
    mixed = np.zeros(corpora[0].vocab_size)
    for counts, share in zip(corpora, shares, strict=True):
        if not share:
            continue
        if not counts.calibration.any():
            names = ", ".join(file.name for file in counts.files) or "one corpus"
            raise SettingError(f"{names} has no calibration text, so it cannot be mixed in. Give it the weight 0.")
        mixed += share * smoothed_shares(counts.calibration, prior.calibration if prior else None)
    return mixed


def proportions(weights: Sequence[float]) -> np.ndarray:
    """float64[n], summing to 1. SettingError for weights that are negative, not finite, or all zero."""
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise SettingError("The weights of a mixture must be 0 or more, and one of them more than 0.")
    relative = np.array(weights, dtype=np.float64) / max(weights)  # The sum of large weights is not finite.
    return relative / relative.sum()


def smoothed_shares(counts: np.ndarray, prior: np.ndarray | None) -> np.ndarray:
    """float64[V], summing to 1: shares of `counts` (int64[V]), leaning on those of `prior` where the text is thin.

    Good-Turing: of the tokens to come, about the share of tokens seen once is of kinds not seen so far (Good 1953).
    That much weight goes to the prior's shares and the rest to the corpus's own, so a large corpus is left nearly as
    it is and a small one takes its rarer tokens in the prior's order. Adding a constant to every count, the commonest
    smoothing, would leave the ranking as it was.
    """
    total = counts.sum()
    own = counts / max(total, 1)
    if prior is None or not prior.any():
        return own
    unseen = np.count_nonzero(counts == 1) / total if total else 1.0
    return (1 - unseen) * own + unseen * prior / prior.sum()


def check_same_tokenizer(corpora: Sequence[TokenCounts]) -> None:
    """TokenizerError where counts of two different tokenizers would be used together."""
    for counts in corpora[1:]:
        if counts.tokenizer_fingerprint != corpora[0].tokenizer_fingerprint:
            raise TokenizerError(
                f"Counts of two different tokenizers ({corpora[0].tokenizer_name} and {counts.tokenizer_name}) cannot "
                "be used together; count both corpora with the same one."
            )
