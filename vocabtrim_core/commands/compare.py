"""`compare`: vanilla, untrimmed and trimmed decoding of the same prompts, timed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields

from vocabtrim_core.commands import compare_batches, decoding, loading
from vocabtrim_core.commands.printing import table, times
from vocabtrim_core.commands.tasks import check_repeats
from vocabtrim_core.decoding.context import context_notes
from vocabtrim_core.decoding.engine import Cycle, CycleTimes
from vocabtrim_core.drafters.registry import NAMES
from vocabtrim_core.engines import EngineNote
from vocabtrim_core.errors import ModelError, SettingError
from vocabtrim_core.evaluation.bandwidth import bound_of, measure_bandwidth
from vocabtrim_core.evaluation.comparison import (
    Comparison,
    Contest,
    Difference,
    MethodFigures,
    Run,
    Turn,
    drafted_lengths,
    play_all,
    summarise,
    warm_up,
)
from vocabtrim_core.evaluation.machine import this_machine
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.models import ModelPair, load_drafter, load_target
from vocabtrim_core.progress import Progress
from vocabtrim_core.prompts import Prompt, read_prompts, typed_prompt

EVERY = "all"
PARTS = tuple(part.name for part in fields(CycleTimes) if part.name not in ("prefill", "wall"))


def run(arguments: Namespace, report: Progress) -> dict:
    """Play every prompt with every method, several times, interleaved; with one drafter, or with every kind of it."""
    check_repeats(arguments)
    if arguments.limit is not None and arguments.limit < 1:
        raise SettingError(f"--limit is {arguments.limit}; choose 1 or more.")
    if arguments.batch:
        compare_batches.check_sizes(arguments.batch)
        if arguments.drafter == EVERY:
            raise SettingError("--batch compares the methods of one drafter: choose one with --drafter, not all.")
    settings = decoding.generation_settings(arguments)
    if arguments.prompts:
        prompts = read_prompts(arguments.prompts, arguments.limit)
    else:
        prompts = [typed_prompt(arguments.prompt)]
    counts = loading.open_counts(arguments.counts)
    target, tokenizer = load_target(arguments.target, arguments.dtype, report)
    stop = decoding.stop_condition(target, tokenizer, arguments)
    contests, trimmings, skipped = [], [], {}
    for source in NAMES if arguments.drafter == EVERY else (arguments.drafter,):
        try:
            pair = ModelPair(target, load_drafter(source, target, tokenizer), tokenizer)
        except ModelError as error:
            if arguments.drafter != EVERY:
                raise
            skipped[source] = str(error)
            continue
        trimming = decoding.trimming(pair, counts, arguments.counts, arguments.k)
        head, k = (trimming.head, trimming.k) if trimming else (None, None)
        contests.append(Contest(pair, head, k, settings, stop))
        trimmings.append(trimming)
    prompt_ids = [_checked_ids(contests, prompt) for prompt in prompts]

    common = {
        "target": target.name,
        "engine": _engine(target.engine),
        "gamma": None if settings.tree else settings.gamma,
        "tree": asdict(settings.tree) if settings.tree else None,
        "prompts": len(prompts),
        "repeats": arguments.repeats,
        "max_new_tokens": settings.max_new_tokens,
        "stop": arguments.stop,
        **asdict(settings.sampling),
    }
    machine = {**asdict(this_machine()), "dtype": target.number_format}
    note = target.format_note
    report(0.0, "Warming up")
    if arguments.batch:
        (contest,), (trimming,) = contests, trimmings
        batches = compare_batches.run(contest, prompt_ids, arguments.batch, arguments.repeats, report)
        return {
            **batches,
            "settings": {**common, **_facts(contest, trimming)},
            "machine": machine,
            "number_format_note": note,
        }
    for contest in contests:
        warm_up(contest, prompt_ids[0])
    bandwidth = measure_bandwidth(target.head.weight.device)
    runs = _played(contests, prompt_ids, arguments.repeats, report)
    exact: list[dict[Turn, Run]] = [{} for _ in contests]
    fixed = [exactly for contest in contests if (exactly := contest.at_fixed_rows())]
    if fixed:  # All have one target and one way to decode.
        exact = _played(fixed, prompt_ids, 1, lambda share, message: report(share, f"Texts at fixed rows: {message}"))
    comparisons = [
        summarise(contest, prompt_ids, timed, untimed)
        for contest, timed, untimed in zip(contests, runs, exact, strict=True)
    ]
    bound = bound_of(target, bandwidth, comparisons[0].methods["vanilla"].cycle_seconds.verification)
    drafters = [
        {
            **_drafter(contest, trimming, comparison, prompts),
            "notes": context_notes(contest.pair.drafter, drafted_lengths(prompt_ids, timed)),
        }
        for contest, trimming, comparison, timed in zip(contests, trimmings, comparisons, runs, strict=True)
    ]
    limit = {**asdict(bound), "seconds": bound.seconds, "efficiency": bound.efficiency}
    if arguments.drafter == EVERY:
        vanilla = drafters[0]["methods"]["vanilla"]
        return {
            "vanilla": vanilla,
            "drafters": drafters,
            "skipped": skipped,
            "bound": limit,
            "settings": common,
            "machine": machine,
            "number_format_note": note,
        }
    (only,) = drafters
    facts = _facts(contests[0], trimmings[0])
    rest = {name: value for name, value in only.items() if name not in facts}
    return {**rest, "bound": limit, "settings": {**common, **facts}, "machine": machine, "number_format_note": note}


def _facts(contest: Contest, trimming: decoding.Trimming | None) -> dict:
    """What a drafter is."""
    return {
        "drafter": contest.pair.drafter.name,
        "kind": contest.pair.drafter.kind,
        "drafter_engine": _engine(contest.pair.drafter.engine),
        "ranking": trimming.ranking.name if trimming else None,
        "k": contest.k,
        "vocab_size": trimming.ranking.vocab_size if trimming else None,
    }


def _drafter(
    contest: Contest, trimming: decoding.Trimming | None, comparison: Comparison, prompts: list[Prompt]
) -> dict:
    """What is told of one drafter: what it is, its methods' figures, and whether the outputs agree."""
    trimmed = comparison.methods.get("trimmed")
    return {
        **_facts(contest, trimming),
        "methods": {method: _figures(figures) for method, figures in comparison.methods.items()},
        "speedup_vs_vanilla": _plain(trimmed.speedup_vs_vanilla) if trimmed else None,
        "speedup_vs_untrimmed": _plain(trimmed.speedup_vs_untrimmed) if trimmed else None,
        "identical": comparison.identical,
        "fixed_rows": comparison.fixed_rows,
        "differences": _places(comparison.differences, prompts),
        "timed_differences": _places(comparison.timed_differences, prompts),
    }


def _engine(engine: EngineNote) -> dict:
    return {"name": engine.name, "reason": engine.reason}


def _places(differences: Sequence[Difference], prompts: list[Prompt]) -> list[dict]:
    return [{**asdict(difference), "where": prompts[difference.prompt].where} for difference in differences]


def _played(
    contests: Sequence[Contest], prompt_ids: list[list[int]], repeats: int, report: Progress
) -> list[dict[Turn, Run]]:
    """The runs of each contest, vanilla's in all of them."""
    methods = 1 + sum(len(contest.methods) - 1 for contest in contests)
    turns = repeats * len(prompt_ids) * methods
    cycles: list[dict[Turn, list[Cycle]]] = [{} for _ in contests]
    done = 0
    for number, turn, cycle in play_all(contests, prompt_ids, repeats):
        drafter = "" if turn.method == "vanilla" else f"{contests[number].pair.drafter.kind} "
        report(done / turns, f"Repeat {turn.repeat + 1}, prompt {turn.prompt + 1}: {drafter}{turn.method}")
        done += cycle.finish is not None
        for found in cycles if turn.method == "vanilla" else cycles[number : number + 1]:
            found.setdefault(turn, []).append(cycle)
    return [{turn: Run(tuple(all_of_it)) for turn, all_of_it in found.items()} for found in cycles]


def describe(result: dict) -> str:
    """A table of the methods, a sentence on what trimming gained, and one on whether the outputs agree."""
    settings, machine = result["settings"], result["machine"]
    if "batches" in result:
        lines = compare_batches.describe(result)
    elif "drafters" in result:
        lines = _overview(result)
    else:
        parts = ("cycle", "body", "head", "target", "accept", "cache", "rest")
        head = ("", "tok/s", "low-high", "tokens/cycle", "accepted", *parts, "vs vanilla")
        rows = [(method, *_cells(figures)) for method, figures in result["methods"].items()]
        lines = [
            *table([head, *rows]),
            "Times are milliseconds a cycle: the drafter's body and head, the target's pass, the accept rule, the "
            f"cache, the rest. {_explained(result['methods'].values())}",
            "",
            verdict(result),
            _agreement(result),
        ]
    shape = f"gamma = {settings['gamma']}"
    if tree := settings["tree"]:
        nodes = "all" if tree["nodes"] is None else tree["nodes"]
        shape = f"trees of depth {tree['depth']}, top-k {tree['branches']}, nodes: {nodes}"
    k = f"k = {settings['k']:,} of {settings['vocab_size']:,}, " if settings.get("k") else ""
    return "\n".join(
        [
            *lines,
            f"{k}{shape}; prompts: {settings['prompts']}, repeats: {settings['repeats']}.",
            *([_limit(result["bound"])] if "bound" in result else []),
            *_engines(result),
            *(note for one in result.get("drafters", [result]) for note in one["notes"]),
            f"{machine['dtype']} on {machine['threads']} threads of {machine['cpu']}.",
        ]
    )


def _overview(result: dict) -> list[str]:
    """The papers' kind of table: speed, speedup and acceptance length of each drafter, full and trimmed."""
    rows: list[tuple[str, ...]] = [("", "k", "tok/s", "speedup", "acceptance length", "vs full")]

    def row(name: str, k: int | None, figures: dict) -> tuple[str, ...]:
        speedup, trimming = figures["speedup_vs_vanilla"], figures["speedup_vs_untrimmed"]
        return (
            name,
            f"{k:,}" if k else "-",
            f"{figures['tokens_per_second']['median']:.1f}",
            times(speedup) if speedup else "1.00x",
            f"{figures['acceptance_length']:.2f}",
            times(trimming) if trimming else "-",
        )

    rows.append(row("vanilla", None, result["vanilla"]))
    for one in result["drafters"]:
        for method, figures in one["methods"].items():
            if method != "vanilla":
                size = one["k"] if method == "trimmed" else one["vocab_size"]
                name = f"{one['kind']}, {'trimmed' if method == 'trimmed' else 'full'}" if size else one["kind"]
                rows.append(row(name, size, figures))
    lines = [*table(rows), ""]
    agreements = {one["kind"]: _agreement(one) for one in result["drafters"]}
    if len(set(agreements.values())) == 1:
        lines.append(next(iter(agreements.values())))
    else:
        lines += [f"{kind}: {agreement}" for kind, agreement in agreements.items()]
    return lines + [f"Left out: {kind}. {why}" for kind, why in result["skipped"].items()]


def verdict(result: dict) -> str:
    """In a sentence, what trimming gained or lost."""
    untrimmed, vanilla = result["speedup_vs_untrimmed"], result["speedup_vs_vanilla"]
    if "trimmed" not in result["methods"]:
        speed = times(result["methods"]["untrimmed"]["speedup_vs_vanilla"])
        return f"This drafter has no head, so there is nothing to trim. It has {speed} the speed of vanilla decoding."
    if untrimmed["median"] > 1:
        text = f"Trimming is faster: {times(untrimmed)} the speed of the untrimmed drafter"
    else:
        text = f"Trimming is slower here: {times(untrimmed)} the speed of the untrimmed drafter"
    if result["settings"]["repeats"] == 1:
        text += ", measured once"
    elif untrimmed["low"] <= 1 <= untrimmed["high"]:
        text += ", within the spread of the runs"
    if vanilla["median"] > 1:
        return f"{text}; {times(vanilla)} the speed of vanilla decoding."
    return f"{text}. Drafting itself is slower here: {times(vanilla)} the speed of vanilla decoding."


def _agreement(result: dict) -> str:
    if result["identical"] is None:
        return "With sampling the outputs share a distribution, not their tokens."
    rows = result["fixed_rows"]
    if result["identical"] and rows is None:
        return "All outputs are identical."
    if result["identical"]:
        text = f"All outputs are identical, bit for bit at {rows} rows in every target pass."
        return f"{text} {_parts('As timed, ', result['timed_differences'])}" if result["timed_differences"] else text
    return _parts("" if rows is None else f"At {rows} rows in every target pass, ", result["differences"])


def _parts(how: str, differences: list[dict]) -> str:
    """Where outputs differ from vanilla's. `how` they were decoded begins the sentence."""
    first = differences[0]
    place = f" of {first['where']}" if first["where"] else ""
    margin = first["logit_margin"]
    by = "" if margin is None else f", where the target's logits are {margin:.2g} apart"
    text = f"{how}runs whose output differs from vanilla's: {len(differences)}. The first is {first['method']}{place}, "
    return f"{text[0].upper()}{text[1:]}from token {first['position']} on{by}."


def _explained(methods: Iterable[dict]) -> str:
    shares = [figures["explained"] for figures in methods if figures["explained"] is not None]
    return f"The parts are {min(shares):.1%} of the wall time or more." if shares else ""


def _limit(bound: dict) -> str:
    return (
        f"A target pass reads {bound['weight_bytes'] / 1e6:,.0f} MB of weights, which takes at least "
        f"{bound['seconds'] * 1e3:.1f} ms at the {bound['bandwidth'] / 1e9:.1f} GB/s measured; vanilla's takes "
        f"{bound['measured_seconds'] * 1e3:.1f} ms: {bound['efficiency']:.0%} of the bound."
    )


def _engines(result: dict) -> list[str]:
    engines = {"target": result["settings"]["engine"]}
    if "drafters" in result:
        engines |= {one["kind"]: one["drafter_engine"] for one in result["drafters"]}
    else:
        engines["drafter"] = result["settings"]["drafter_engine"]
    return [f"Engine of the {who}: {engine['name']} ({engine['reason']})." for who, engine in engines.items()]


def _checked_ids(contests: Sequence[Contest], prompt: Prompt) -> list[int]:
    """The prompt's ids, after a check that they fit every model, which costs nothing before the first cycle."""
    ids = contests[0].pair.tokenizer.encode_prompt(prompt.text)
    try:
        for contest in contests:
            contest.cycles("untrimmed", ids)
    except SettingError as error:
        raise SettingError(f"{prompt.where}: {error}" if prompt.where else str(error)) from None
    return ids


def _figures(figures: MethodFigures) -> dict:
    result = asdict(figures)
    parts = result.pop("cycle_seconds")
    del parts["prefill"], parts["wall"]
    seconds = figures.cycle_seconds
    return {**result, "cycle_time": {**parts, "total": seconds.total}, "cycle_wall_seconds": seconds.wall}


def _cells(figures: dict) -> tuple[str, ...]:
    speed, seconds = figures["tokens_per_second"], figures["cycle_time"]
    rate = figures["acceptance_rate"]
    return (
        f"{speed['median']:.1f}",
        f"{speed['low']:.1f}-{speed['high']:.1f}",
        f"{figures['acceptance_length']:.2f}",
        "-" if rate is None else f"{rate:.1%}",
        *(f"{seconds[part] * 1000:.1f}" for part in ("total", *PARTS)),
        "-" if figures["speedup_vs_vanilla"] is None else times(figures["speedup_vs_vanilla"]),
    )


def _plain(spread: Spread | None) -> dict | None:
    return None if spread is None else asdict(spread)
