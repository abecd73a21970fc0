"""`coverage`: which share of a text the first k tokens of a ranking cover, what is missing, and how domains differ."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vocabtrim_core.commands.loading import check_tokenizer, open_counts, open_tokenizer
from vocabtrim_core.corpora import read_file
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.coverage import domain_matrix, missing_tokens, mixed_coverage_interval
from vocabtrim_core.embedded import EMBEDDED, is_embedded_target_ready
from vocabtrim_core.errors import SettingError
from vocabtrim_core.importing import import_tokens
from vocabtrim_core.mixing import check_same_tokenizer, mixed_shares, proportions
from vocabtrim_core.progress import Progress
from vocabtrim_core.sentences import visible
from vocabtrim_core.token_text import byte_ids, readable_tokens
from vocabtrim_core.tokenization import Tokenizer
from vocabtrim_core.vocabulary import Ranking, check_k, forced_token_ids, rank_tokens
from vocabtrim_core.zipf import (
    ZipfFit,
    coverage_curve,
    fit_zipf,
    fit_zipf_mandelbrot,
    k_for_coverage,
    rank_frequency,
    rarest_share,
)

SHARES = ("0.9", "0.95", "0.99")
BYTES = "bytes"  # Instead of an id: the tokens that spell characters byte by byte.


@dataclass(frozen=True)
class _Corpora:
    """All counts by name, and those that are measured together, with their weights."""

    named: dict[str, TokenCounts]
    measured: tuple[TokenCounts, ...]
    weights: tuple[float, ...]
    notes: tuple[str, ...]


def run(arguments: Namespace, report: Progress) -> dict:
    """Coverage at each k with the interval of its held-out side, the k for each share, and the Zipf fits.

    The measured text is the first counts file, or the mixture. Its ranking is by calibration counts unless there is a
    list; `k_for` is read off the calibration curve, `k_for_held_out` off the other. What nothing was counted for is
    None. With several corpora each one's ranking is measured on each one's text.
    """
    tokenizer, corpora = _open(arguments, report)
    ranked = _Rankings(arguments, tokenizer)
    ranking, notes = ranked.chosen(corpora)
    sizes = sorted({check_k(ranking, k) for k in arguments.k})
    curves = {
        side: _mean_curve(ranking, [getattr(counts, side) for counts in corpora.measured], corpora.weights)
        for side in ("calibration", "held_out")
    }
    held_out = [counts.held_out_groups for counts in corpora.measured]
    interval = mixed_coverage_interval(ranking, held_out, corpora.weights, sizes)
    coverage = {
        str(k): {
            **{side: _number(curve[k - 1]) for side, curve in curves.items()},
            "held_out_low": _number(interval.low[i]),
            "held_out_high": _number(interval.high[i]),
        }
        for i, k in enumerate(sizes)
    }
    fits = {name: _describe_counts(counts) for name, counts in corpora.named.items()}
    main = next(iter(fits.values()))
    return {
        "coverage": coverage,
        "k_for": {share: k_for_coverage(curves["calibration"], float(share)) for share in SHARES},
        "k_for_held_out": {share: k_for_coverage(curves["held_out"], float(share)) for share in SHARES},
        "zipf_exponent": main["zipf"]["exponent"] if main["zipf"] else None,
        "corpora": fits,
        "ranking": ranking.name,
        "forced_tokens": None if tokenizer is None else ranking.forced,
        "banned_tokens": ranking.banned,
        "observed_tokens": ranking.observed,
        "domain_matrix": _domain_matrix(ranking, ranked, corpora, sizes),
        "missing_tokens": {
            name: {str(k): _missing(ranking, k, counts, tokenizer, arguments.missing) for k in sizes}
            for name, counts in corpora.named.items()
        },
        "notes": [*corpora.notes, *notes],
        "vocab_size": corpora.measured[0].vocab_size,
        "tokenizer": {
            "name": corpora.measured[0].tokenizer_name,
            "fingerprint": corpora.measured[0].tokenizer_fingerprint,
        },
    }


def describe(result: dict) -> str:
    """A table of k, a line for each share, the fits, the domain matrix and the missing tokens."""
    lines = [f"{'k':>8}  calibration  held-out  (95 % interval)"]
    for k, shares in result["coverage"].items():
        low, high = _percent(shares["held_out_low"]), _percent(shares["held_out_high"])
        lines.append(
            f"{int(k):>8,}  {_percent(shares['calibration']):>11}  {_percent(shares['held_out']):>8}  ({low} to {high})"
        )
    largest = max(map(int, result["coverage"]))
    if largest > result["observed_tokens"]:
        observed = f"{result['observed_tokens']:,} tokens"
        lines.append(f"Only {observed} are forced or were counted; a larger k is filled in order of id.")
    lines.append("")
    for share, k in result["k_for"].items():
        held_out = result["k_for_held_out"][share]
        lines.append(
            f"{float(share):.0%} needs k = {_whole(k)} on calibration text, {_whole(held_out)} on held-out text."
        )
    for name, corpus in result["corpora"].items():
        lines += ["", f"{visible(name)}: {corpus['tokens']:,} tokens in {corpus['documents']:,} documents."]
        lines.append(_laws(corpus["zipf"], corpus["zipf_mandelbrot"]))
        rarest = corpus["rarest_75_percent"]
        lines.append(f"The rarest 75 % of the vocabulary make up {_percent(rarest)} of the text.")
        if corpus["tokens"]:
            of_observed = corpus["rarest_75_percent_of_observed"]
            lines.append(
                f"Of the {corpus['distinct']:,} tokens that occur, the rarest 75 % make up {_percent(of_observed)} and "
                f"the most frequent 25 % the other {_percent(1 - of_observed)}."
            )
    for k, matrix in result["domain_matrix"].items():
        width = max(12, *(len(visible(name)) for name in [*matrix["rows"], *matrix["columns"]]))
        lines += ["", f"Held-out coverage at k = {int(k):,} (row: the ranking; column: the text)"]
        lines.append(" " * width + "".join(f"  {visible(name):>{width}}" for name in matrix["columns"]))
        for name, row in zip(matrix["rows"], matrix["coverage"], strict=True):
            lines.append(f"{visible(name):<{width}}" + "".join(f"  {_percent(share):>{width}}" for share in row))
    for name, by_k in result["missing_tokens"].items():
        for k, tokens in by_k.items():
            if tokens:
                listed = ", ".join(f"{visible(one['text'] or '')} ({one['id']}) {one['share']:.2%}" for one in tokens)
                lines += ["", f"Missing most at k = {int(k):,} in {visible(name)}: {listed}"]
    if result["forced_tokens"] is None:
        lines += ["", "Control tokens are ranked by count only: name the tokenizer with --tokenizer to keep them all."]
    return "\n".join([*lines, *(["", *result["notes"]] if result["notes"] else [])])


class _Rankings:
    """Makes rankings as the arguments say: what is forced, pinned, banned, and what thin counts lean on."""

    def __init__(self, arguments: Namespace, tokenizer: Tokenizer | None) -> None:
        self._arguments, self._tokenizer = arguments, tokenizer
        self._prior = open_counts(arguments.prior) if arguments.prior else None
        self._forced = () if tokenizer is None else forced_token_ids(tokenizer)
        self._pinned = _token_ids(arguments.pin, tokenizer)
        self._banned = _token_ids(arguments.ban, tokenizer)

    def of(self, corpora: Sequence[TokenCounts], weights: Sequence[float], name: str) -> Ranking:
        if not self._arguments.mix and self._prior is None:
            worth = corpora[0].calibration
        else:
            worth = mixed_shares(corpora, weights, self._prior)
        return rank_tokens(worth, self._forced, name, pinned=self._pinned, banned=self._banned)

    def chosen(self, corpora: _Corpora) -> tuple[Ranking, tuple[str, ...]]:
        """The ranking that is measured, and what there is to say about it."""
        if self._arguments.list is None:
            name = "mixture" if self._arguments.mix else next(iter(corpora.named))
            return self.of(corpora.measured, corpora.weights, name), ()
        if self._pinned or self._banned or self._prior:
            raise SettingError("--pin, --ban and --prior change a ranking by counts; leave them out with --list.")
        if self._tokenizer is None:
            raise SettingError("A list needs its tokenizer. Name it with --tokenizer.")
        imported = import_tokens(read_file(self._arguments.list), self._tokenizer)
        if isinstance(imported.content, Ranking):
            return imported.content, imported.notes
        return self.of([imported.content], [1.0], self._arguments.list.stem), imported.notes


def _open(arguments: Namespace, report: Progress) -> tuple[Tokenizer | None, _Corpora]:
    mix: dict[Path, float] = arguments.mix or {}
    paths = list(dict.fromkeys([*mix, *arguments.counts]))
    if not paths:
        raise SettingError("There is nothing to measure: give at least one counts file, or --mix.")
    tokenizer = None if arguments.tokenizer is None else open_tokenizer(arguments.tokenizer, report)
    opened: dict[Path, TokenCounts] = {}
    notes: list[str] = []
    for path in paths:
        if path.suffix == ".npz":
            opened[path] = open_counts(path)
            continue
        tokenizer = tokenizer or open_tokenizer(EMBEDDED, report)
        imported = import_tokens(read_file(path), tokenizer)
        if isinstance(imported.content, Ranking):
            raise SettingError(f"{path} is a list without counts. Give it with --list, beside counts of your text.")
        opened[path] = imported.content
        notes += [f"{path.name}: {note}" for note in imported.notes]
    check_same_tokenizer(list(opened.values()))
    if tokenizer is None:
        tokenizer = _embedded_tokenizer(opened[paths[0]], report)
    else:
        check_tokenizer(opened[paths[0]], tokenizer, paths[0])
    names = {path: path.stem if [one.stem for one in paths].count(path.stem) == 1 else str(path) for path in paths}
    named = {names[path]: counts for path, counts in opened.items()}
    measured = tuple(opened[path] for path in (mix or paths[:1]))
    return tokenizer, _Corpora(named, measured, tuple(mix.values()) or (1.0,), tuple(notes))


def _embedded_tokenizer(counts: TokenCounts, report: Progress) -> Tokenizer | None:
    """The embedded tokenizer, if the counts are its own and it is there already."""
    if counts.tokenizer_fingerprint == open_counts(None).tokenizer_fingerprint and is_embedded_target_ready():
        return open_tokenizer(EMBEDDED, report)
    return None


def _token_ids(tokens: Sequence[str], tokenizer: Tokenizer | None) -> list[int]:
    """The ids that --pin and --ban name."""
    ids: list[int] = []
    for token in tokens:
        if token != BYTES:
            ids.append(int(token))
        elif tokenizer is None:
            raise SettingError(f"To find the {BYTES} the tokenizer is needed. Name it with --tokenizer.")
        else:
            ids += byte_ids(tokenizer)
    return ids


def _mean_curve(ranking: Ranking, histograms: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    shares = proportions(weights)
    curves = [coverage_curve(ranking.ids, counts) for counts in histograms]
    return sum((share * curve for share, curve in zip(shares, curves, strict=True) if share), np.zeros(1))


def _domain_matrix(ranking: Ranking, ranked: _Rankings, corpora: _Corpora, sizes: list[int]) -> dict:
    """For each k; empty where there is only one corpus and its own ranking."""
    own = [ranked.of([counts], [1.0], name) for name, counts in corpora.named.items() if counts.calibration.any()]
    rankings = own if ranking.name in corpora.named else [*own, ranking]
    if len(rankings) == 1:
        return {}
    texts = {name: counts.held_out_groups for name, counts in corpora.named.items()}
    matrices = {k: domain_matrix(rankings, texts, k) for k in sizes}
    return {
        str(k): {
            "rows": list(matrix.rows),
            "columns": list(matrix.columns),
            **{
                side: [[_number(share) for share in row] for row in getattr(matrix, side)]
                for side in ("coverage", "low", "high")
            },
        }
        for k, matrix in matrices.items()
    }


def _missing(ranking: Ranking, k: int, counts: TokenCounts, tokenizer: Tokenizer | None, limit: int) -> list[dict]:
    missing = missing_tokens(ranking, k, counts.total, limit)
    texts = (
        [None] * len(missing) if tokenizer is None else readable_tokens(tokenizer, [one.token_id for one in missing])
    )
    return [
        {"id": one.token_id, "text": text, "count": one.count, "share": one.share, "kept_from": one.kept_from}
        for one, text in zip(missing, texts, strict=True)
    ]


def _describe_counts(counts: TokenCounts) -> dict:
    return {
        "tokens": counts.tokens,
        "documents": counts.documents,
        "distinct": counts.distinct,
        "zipf": _fit(fit_zipf(counts.total)),
        "zipf_mandelbrot": _fit(fit_zipf_mandelbrot(counts.total)),
        "rarest_75_percent": _number(rarest_share(counts.total, 0.75)),
        "rarest_75_percent_of_observed": _number(rarest_share(rank_frequency(counts.total), 0.75)),
    }


def _fit(fit: ZipfFit | None) -> dict | None:
    if fit is None:
        return None
    return {"exponent": fit.exponent, "offset": fit.offset, "distance": fit.distance, "ranks": fit.high}


def _laws(zipf: dict | None, mandelbrot: dict | None) -> str:
    if zipf is None:
        return "Too little text to fit Zipf's law."
    said = f"Zipf exponent: {zipf['exponent']:.3f} (largest gap {zipf['distance']:.1%}). Zipf-Mandelbrot"
    if mandelbrot is None:
        return f"{said} does not fit: rare tokens fall off faster than any power of the rank."
    return (
        f"{said}: {mandelbrot['exponent']:.3f}, offset {mandelbrot['offset']:.1f} (gap {mandelbrot['distance']:.1%})."
    )


def _number(share: float) -> float | None:
    return None if np.isnan(share) else float(share)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _whole(k: int | None) -> str:
    return "-" if k is None else f"{k:,}"
