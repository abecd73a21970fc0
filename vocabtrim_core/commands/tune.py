"""`tune`: predicted speed at every k and gamma from one pass over held-out prompts, measured points, what to ship."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict

from vocabtrim_core.commands import decoding
from vocabtrim_core.commands.tasks import check_repeats, chosen_prompts, in_tokens, open_contest
from vocabtrim_core.decoding.context import context_notes
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.evaluation.advice import in_words
from vocabtrim_core.evaluation.measuring import VANILLA, Measured, measure
from vocabtrim_core.evaluation.replay import Replay, replay, replayed_sizes
from vocabtrim_core.evaluation.teacher_forcing import longest_draft
from vocabtrim_core.evaluation.trace import kept_trace, usable_prompts
from vocabtrim_core.evaluation.tuning import Prediction, Tuned, tune
from vocabtrim_core.progress import Progress
from vocabtrim_core.trees import DraftShape
from vocabtrim_core.vocabulary import check_k


def run(arguments: Namespace, report: Progress) -> dict:
    """Trace, predict, measure what was asked for."""
    check_repeats(arguments)
    decoding.check_stops(arguments)
    sampling = decoding.sampling_settings(arguments)
    settings = GenerationSettings(max(arguments.gammas), arguments.max_new_tokens, sampling)
    tree = DraftShape(*arguments.tree) if arguments.tree else None
    texts = chosen_prompts(arguments.prompts, arguments.limit)
    contest, ranking = open_contest(arguments, settings, report)
    longest = longest_draft(contest.pair, max(arguments.gammas))
    gammas = [gamma for gamma in arguments.gammas if gamma <= longest] or [longest]
    measured_ks = [check_k(ranking, ranking.vocab_size if k is None else k) for k in arguments.measure]
    prompts, left_out = usable_prompts(contest.pair, in_tokens(texts, contest.pair.tokenizer))
    trace = kept_trace(arguments.keep, contest.pair, prompts, settings, contest.stop, report)
    tuned = tune(
        contest, ranking, trace, gammas, measured_ks, contest.pair.target.number_format, report, arguments.keep
    )
    measured: list[Measured] = []
    if measured_ks:
        points = [(k, tuned.recommendation.gamma) for k in measured_ks]
        measured, _ = measure(contest, prompts, points, arguments.repeats, report)
    trees: list[Replay] = []
    measured_trees: list[Measured] = []
    if tree is not None:
        assert contest.ranked_head is not None
        ks = replayed_sizes(tuned.prediction.ks, [*measured_ks, tuned.recommendation.k])
        trees = replay(contest.pair, trace, contest.ranked_head, tree, ks, report)
        if measured_ks:
            points = [(k, tree.depth) for k in measured_ks]
            measured_trees, _ = measure(contest, prompts, points, arguments.repeats, report, tree)
    return {
        **curve(tuned),
        "tree": _trees(tree, trees, measured_trees),
        "left_out": left_out,
        "notes": context_notes(contest.pair.drafter, trace.lengths),
        "number_format_note": contest.pair.target.format_note,
        "measured": [_measured(one, tuned.prediction) for one in measured if (one.k, one.gamma) != VANILLA],
        "vanilla_tokens_per_second": next(
            (asdict(one.tokens_per_second) for one in measured if (one.k, one.gamma) == VANILLA), None
        ),
        "profile": tuned.profile.to_json(),
        "settings": {
            "target": contest.pair.target.name,
            "drafter": contest.pair.drafter.name,
            "ranking": ranking.name,
            "vocab_size": ranking.vocab_size,
            "prompts": len(prompts),
            "tokens": trace.tokens,
            "gammas": gammas,
            "max_new_tokens": arguments.max_new_tokens,
            "stop": arguments.stop,
            **asdict(sampling),
        },
        "seconds": {"plain_generation": trace.target_seconds, "beyond": tuned.seconds},
    }


def curve(tuned: Tuned) -> dict:
    """The prediction and the recommendation as plain values."""
    prediction, best = tuned.prediction, tuned.recommendation
    points = [
        {
            "k": k,
            "gamma": gamma,
            "tau": float(prediction.tau[row, column]),
            "predicted_speedup": float(prediction.speedup[row, column]),
            "low": float(prediction.low[row, column]),
            "high": float(prediction.high[row, column]),
            "retained": float(prediction.retained[row, column]),
            "out_of_vocabulary_share": float(prediction.out_of_vocabulary_share[row, column]),
            "modelled_mbsu": float(prediction.mbsu[row, column]),
        }
        for row, gamma in enumerate(prediction.gammas)
        for column, k in enumerate(prediction.ks)
    ]
    recommended = {
        "k": best.k,
        "gamma": best.gamma,
        "speedup": best.speedup.median,
        "low": best.speedup.low,
        "high": best.speedup.high,
        "trim": best.trim,
        "speculate": best.speculate,
        "tau": best.tau,
        "retained": best.retained,
        "plateau": list(best.plateau),
        "best_trimmed_k": best.best_trimmed_k,
        "thin": best.thin,
        "over_untrimmed": asdict(best.over_untrimmed),
        "advice": in_words(best),
    }
    return {"curve": points, "recommended": recommended}


def _trees(shape: DraftShape | None, found: Sequence[Replay], measured: Sequence[Measured]) -> dict | None:
    """Tau of drafted trees at each k, by replay, and the speed of those that were run."""
    if shape is None:
        return None
    full = found[-1].tau.median
    speeds = {one.k: one for one in measured}
    points = [
        {
            "k": one.k,
            "tau": one.tau.median,
            "low": one.tau.low,
            "high": one.tau.high,
            "retained": one.tau.median / full,
            "out_of_vocabulary_share": one.out_of_vocabulary_share,
            "measured_speedup": asdict(speeds[one.k].speedup) if one.k in speeds else None,
            "measured_tau": speeds[one.k].tau if one.k in speeds else None,
        }
        for one in found
    ]
    return {**asdict(shape), "points": points}


def _describe_trees(tree: dict) -> list[str]:
    shape = f"depth {tree['depth']}, top-k {tree['branches']}, {tree['nodes'] or 'all'} nodes"
    rows: list[tuple[str, ...]] = [("k", "tau", "interval", "kept", "vs vanilla")]
    for one in tree["points"]:
        speed = one["measured_speedup"]
        span = f"{one['low']:.2f}-{one['high']:.2f}"
        run = f"{speed['median']:.2f}x" if speed else "-"
        rows.append((f"{one['k']:,}", f"{one['tau']:.2f}", span, f"{one['retained']:.1%}", run))
    return [f"Draft trees ({shape}): tau by replay of the drafter, speed measured.", *_aligned(rows)]


def describe(result: dict) -> str:
    """The recommendation, the best k of every gamma, and predicted beside measured."""
    best = result["recommended"]
    lines = [best["advice"], ""]
    rows: list[tuple[str, ...]] = [("gamma", "best k", "tau", "vs vanilla", "interval", "MBSU (modelled)")]
    for gamma in result["settings"]["gammas"]:
        one = max((p for p in result["curve"] if p["gamma"] == gamma), key=lambda point: point["predicted_speedup"])
        span = f"{one['low']:.2f}-{one['high']:.2f}"
        cells = f"{one['tau']:.2f}", f"{one['predicted_speedup']:.2f}x", span, f"{one['modelled_mbsu']:.2f}"
        rows.append((str(gamma), f"{one['k']:,}", *cells))
    lines += _aligned(rows)
    if result["measured"]:
        lines += ["", "Measured:"]
        rows = [("k", "gamma", "tau", "vs vanilla", "spread", "predicted", "off by")]
        for one in result["measured"]:
            span = f"{one['low']:.2f}-{one['high']:.2f}"
            off = f"{one['predicted_speedup'] / one['speedup'] - 1:+.1%}"
            rows.append(
                (
                    f"{one['k']:,}",
                    str(one["gamma"]),
                    f"{one['tau']:.2f}",
                    f"{one['speedup']:.2f}x",
                    span,
                    f"{one['predicted_speedup']:.2f}x",
                    off,
                )
            )
        lines += _aligned(rows)
    if result["tree"]:
        lines += ["", *_describe_trees(result["tree"])]
    settings, profile, seconds = result["settings"], result["profile"], result["seconds"]
    lines += [
        "",
        f"From {settings['tokens']:,} tokens of {settings['prompts']} prompts; {profile['dtype']} on "
        f"{profile['machine']['threads']} threads of {profile['machine']['cpu']}.",
        f"Plain generation took {seconds['plain_generation']:.0f} s, all the rest {seconds['beyond']:.0f} s.",
        *result["left_out"],
        *result["notes"],
    ]
    return "\n".join(lines)


def _measured(one: Measured, prediction: Prediction) -> dict:
    predicted = prediction.interval(one.k, one.gamma)
    return {
        "k": one.k,
        "gamma": one.gamma,
        "tau": one.tau,
        "speedup": one.speedup.median,
        "low": one.speedup.low,
        "high": one.speedup.high,
        "tokens_per_second": asdict(one.tokens_per_second),
        "predicted_speedup": predicted.median,
        "predicted_tau": float(prediction.tau[prediction.at(one.k, one.gamma)]),
    }


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
