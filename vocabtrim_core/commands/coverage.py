"""`coverage`: which share of the counted text the first k tokens of its ranking cover."""

from __future__ import annotations

from argparse import Namespace

import numpy as np

from vocabtrim_core.commands.loading import check_tokenizer, open_counts, open_tokenizer
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.embedded import Progress, is_embedded_target_ready
from vocabtrim_core.models import EMBEDDED
from vocabtrim_core.tokenization import Tokenizer
from vocabtrim_core.vocabulary import check_k, forced_token_ids, rank_tokens
from vocabtrim_core.zipf import coverage_curve, fit_zipf, k_for_coverage

SHARES = ("0.9", "0.95", "0.99")


def run(arguments: Namespace, report: Progress) -> dict:
    """Coverage at each k, the k for each share, and the Zipf exponent of all the text.

    The ranking is by calibration counts; `k_for` is read off the calibration curve, `k_for_held_out` off the other.
    What nothing was counted for is None.
    """
    counts = open_counts(arguments.counts)
    tokenizer = _tokenizer_of(counts, arguments, report)
    forced = () if tokenizer is None else forced_token_ids(tokenizer)
    ranking = rank_tokens(counts.calibration, forced, arguments.counts.stem)
    curves = {
        "calibration": coverage_curve(ranking.ids, counts.calibration),
        "held_out": coverage_curve(ranking.ids, counts.held_out),
    }
    sizes = [check_k(ranking, k) for k in arguments.k]
    fit = fit_zipf(counts.total)
    return {
        "coverage": {str(k): {side: _number(curve[k - 1]) for side, curve in curves.items()} for k in sizes},
        "k_for": {share: k_for_coverage(curves["calibration"], float(share)) for share in SHARES},
        "k_for_held_out": {share: k_for_coverage(curves["held_out"], float(share)) for share in SHARES},
        "zipf_exponent": fit.exponent if fit else None,
        "forced_tokens": None if tokenizer is None else ranking.forced,
        "observed_tokens": ranking.observed,
        "vocab_size": counts.vocab_size,
        "tokenizer": {"name": counts.tokenizer_name, "fingerprint": counts.tokenizer_fingerprint},
    }


def describe(result: dict) -> str:
    """A table of k, a line for each share, and the exponent."""
    lines = [f"{'k':>8}  calibration  held-out"]
    for k, shares in result["coverage"].items():
        lines.append(f"{int(k):>8,}  {_percent(shares['calibration']):>11}  {_percent(shares['held_out']):>8}")
    lines.append("")
    for share, k in result["k_for"].items():
        held_out = result["k_for_held_out"][share]
        lines.append(
            f"{float(share):.0%} needs k = {_whole(k)} on calibration text, {_whole(held_out)} on held-out text."
        )
    exponent = result["zipf_exponent"]
    lines.append("Too little text to fit Zipf's law." if exponent is None else f"Zipf exponent: {exponent:.3f}.")
    if result["forced_tokens"] is None:
        lines.append("Control tokens are ranked by count only: name the tokenizer with --tokenizer to keep them all.")
    return "\n".join(lines)


def _tokenizer_of(counts: TokenCounts, arguments: Namespace, report: Progress) -> Tokenizer | None:
    """The tokenizer that was named, or the embedded one if the counts are its own and it is there already."""
    if arguments.tokenizer is not None:
        tokenizer = open_tokenizer(arguments.tokenizer, report)
        check_tokenizer(counts, tokenizer, arguments.counts)
        return tokenizer
    shipped = open_counts(None)
    if counts.tokenizer_fingerprint == shipped.tokenizer_fingerprint and is_embedded_target_ready():
        return open_tokenizer(EMBEDDED, report)
    return None


def _number(share: np.float64) -> float | None:
    return None if np.isnan(share) else float(share)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _whole(k: int | None) -> str:
    return "-" if k is None else f"{k:,}"
