"""`compare`: vanilla, untrimmed and trimmed decoding of the same prompts, timed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, fields

from vocabtrim_core.commands import loading
from vocabtrim_core.decoding.engine import Cycle, CycleTimes
from vocabtrim_core.embedded import Progress
from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.comparison import (
    METHODS,
    Contest,
    MethodFigures,
    Turn,
    collect,
    play,
    summarise,
    warm_up,
)
from vocabtrim_core.evaluation.machine import this_machine
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.models import load_pair
from vocabtrim_core.prompts import Prompt, read_prompts, typed_prompt

PARTS = tuple(part.name for part in fields(CycleTimes) if part.name != "prefill")


def run(arguments: Namespace, report: Progress) -> dict:
    """Play every prompt with every method, several times, interleaved."""
    for name in ("repeats", "limit"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise SettingError(f"--{name} is {value}; choose 1 or more.")
    settings = loading.generation_settings(arguments)
    if arguments.prompts:
        prompts = read_prompts(arguments.prompts, arguments.limit)
    else:
        prompts = [typed_prompt(arguments.prompt)]
    counts = loading.open_counts(arguments.counts)
    pair = load_pair(arguments.target, arguments.drafter, arguments.dtype, on_progress=report)
    ranking = loading.rank_for(pair, counts, arguments.counts)
    k = loading.choose_k(ranking, arguments.k)
    stop = loading.stop_condition(pair.target, pair.tokenizer, arguments)
    contest = Contest(pair, loading.ranked_head(pair, ranking), k, settings, stop)
    prompt_ids = [_checked_ids(contest, prompt) for prompt in prompts]

    report(0.0, "Warming up")
    warm_up(contest, prompt_ids[0])
    turns = arguments.repeats * len(prompts) * len(METHODS)
    played = _watched(play(contest, prompt_ids, arguments.repeats), turns, report)
    comparison = summarise(contest, prompt_ids, collect(played))
    trimmed = comparison.methods["trimmed"]
    return {
        "methods": {method: _figures(figures) for method, figures in comparison.methods.items()},
        "speedup_vs_vanilla": _plain(trimmed.speedup_vs_vanilla),
        "speedup_vs_untrimmed": _plain(trimmed.speedup_vs_untrimmed),
        "identical": comparison.identical,
        "differences": [
            {**asdict(difference), "where": prompts[difference.prompt].where} for difference in comparison.differences
        ],
        "settings": {
            "target": pair.target.name,
            "drafter": pair.drafter.name,
            "ranking": ranking.name,
            "k": k,
            "vocab_size": ranking.vocab_size,
            "gamma": settings.gamma,
            "prompts": len(prompts),
            "repeats": comparison.repeats,
            "max_new_tokens": settings.max_new_tokens,
            "stop": arguments.stop,
            **asdict(settings.sampling),
        },
        "machine": {**asdict(this_machine()), "dtype": arguments.dtype},
    }


def describe(result: dict) -> str:
    """A table of the methods, a sentence on what trimming gained, and one on whether the outputs agree."""
    settings, machine = result["settings"], result["machine"]
    head = ("tok/s", "low-high", "tokens/cycle", "accepted", "cycle", "body", "head", "target", "accept", "cache", "rest", "vs vanilla")
    rows = [("", *head)] + [(method, *_cells(figures)) for method, figures in result["methods"].items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines += [
        "Times are milliseconds a cycle: the drafter's body and head, the target's pass, the accept rule, the cache, "
        "the rest.",
        "",
        verdict(result),
        _agreement(result),
        f"k = {settings['k']:,} of {settings['vocab_size']:,}, gamma = {settings['gamma']}; "
        f"prompts: {settings['prompts']}, repeats: {settings['repeats']}.",
        f"{machine['dtype']} on {machine['threads']} threads of {machine['cpu']}.",
    ]
    return "\n".join(lines)


def verdict(result: dict) -> str:
    """In a sentence, what trimming gained or lost."""
    untrimmed, vanilla = result["speedup_vs_untrimmed"], result["speedup_vs_vanilla"]
    if untrimmed["median"] > 1:
        text = f"Trimming is faster: {_times(untrimmed)} the speed of the untrimmed drafter"
    else:
        text = f"Trimming is slower here: {_times(untrimmed)} the speed of the untrimmed drafter"
    if result["settings"]["repeats"] == 1:
        text += ", measured once"
    elif untrimmed["low"] <= 1 <= untrimmed["high"]:
        text += ", within the spread of the runs"
    if vanilla["median"] > 1:
        return f"{text}; {_times(vanilla)} the speed of vanilla decoding."
    return f"{text}. Drafting itself is slower here: {_times(vanilla)} the speed of vanilla decoding."


def _agreement(result: dict) -> str:
    if result["identical"] is None:
        return "With sampling the outputs share a distribution, not their tokens."
    if result["identical"]:
        return "The outputs of all three are identical."
    differences = result["differences"]
    first = differences[0]
    place = f" of {first['where']}" if first["where"] else ""
    margin = first["logit_margin"]
    by = "" if margin is None else f", where the target's logits are {margin:.2g} apart"
    return (
        f"Runs whose output differs from vanilla's: {len(differences)}. The first is {first['method']}{place}, from "
        f"token {first['position']} on{by}."
    )


def _checked_ids(contest: Contest, prompt: Prompt) -> list[int]:
    """The prompt's ids, after a check that they fit every model, which costs nothing before the first cycle."""
    ids = contest.pair.tokenizer.encode_prompt(prompt.text)
    try:
        contest.cycles("trimmed", ids)
    except SettingError as error:
        raise SettingError(f"{prompt.where}: {error}" if prompt.where else str(error)) from None
    return ids


def _watched(played: Iterator[tuple[Turn, Cycle]], turns: int, report: Progress) -> Iterator[tuple[Turn, Cycle]]:
    done = 0
    for turn, cycle in played:
        report(done / turns, f"Repeat {turn.repeat + 1}, prompt {turn.prompt + 1}: {turn.method}")
        done += cycle.finish is not None
        yield turn, cycle


def _figures(figures: MethodFigures) -> dict:
    result = asdict(figures)
    times = result.pop("cycle_seconds")
    del times["prefill"]
    return {**result, "cycle_time": {**times, "total": figures.cycle_seconds.total}}


def _cells(figures: dict) -> tuple[str, ...]:
    speed, times = figures["tokens_per_second"], figures["cycle_time"]
    rate = figures["acceptance_rate"]
    return (
        f"{speed['median']:.1f}",
        f"{speed['low']:.1f}-{speed['high']:.1f}",
        f"{figures['acceptance_length']:.2f}",
        "-" if rate is None else f"{rate:.1%}",
        *(f"{times[part] * 1000:.1f}" for part in ("total", *PARTS)),
        "-" if figures["speedup_vs_vanilla"] is None else _times(figures["speedup_vs_vanilla"]),
    )


def _times(spread: dict) -> str:
    return f"{spread['median']:.2f}x ({spread['low']:.2f}-{spread['high']:.2f})"


def _plain(spread: Spread | None) -> dict | None:
    return None if spread is None else asdict(spread)
