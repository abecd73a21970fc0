"""Vanilla, untrimmed and trimmed decoding of the same prompts, one after the other, and what came out.

`play` runs them and yields every cycle as it happens; `summarise` turns whatever was played into figures, so a run that
was stopped half-way still counts for what it did.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch

from vocabtrim_core.decoding.engine import Cycle, CycleTimes, Decoding, GenerationSettings, generate
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.drafters import Drafter
from vocabtrim_core.evaluation.fixed_rows import fixed_rows
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.models import ModelPair

Method = Literal["vanilla", "untrimmed", "trimmed"]
METHODS: tuple[Method, ...] = ("vanilla", "untrimmed", "trimmed")


@dataclass(frozen=True, eq=False)
class Contest:
    """What is compared: a pair, its drafter's head in rank order with the trimmed size k, and how to decode.

    A drafter without a head (prompt lookup) has neither, and there is one method with it, "untrimmed".
    """

    pair: ModelPair
    ranked_head: RankedHead | None
    k: int | None
    settings: GenerationSettings
    stop: StopCondition

    @property
    def methods(self) -> tuple[Method, ...]:
        """What there is to compare."""
        return METHODS if self.ranked_head is not None else ("vanilla", "untrimmed")

    def cycles(self, method: Method, prompt_ids: list[int]) -> Iterator[Cycle]:
        """Decode one prompt with one method."""
        return generate(self.pair.target, self._drafter(method), prompt_ids, self.settings, self.stop)

    def decoding(self, method: Method, prompt_ids: list[int], seed: int) -> Decoding:
        """The same with a seed of its own, to be taken in steps beside others."""
        settings = replace(self.settings, sampling=replace(self.settings.sampling, seed=seed))
        return Decoding(self.pair.target, self._drafter(method), prompt_ids, settings, self.stop)

    def _drafter(self, method: Method) -> Drafter | None:
        if method == "vanilla":
            return None
        return self.pair.drafter.new_drafter(self.ranked_head, self.k if method == "trimmed" else None)

    def at_fixed_rows(self) -> Contest | None:
        """The same with as many rows in every pass as the longest draft needs, or a few more, so that texts can be
        compared bit for bit. None where plain runs are compared: sampling, float32, or where no number of rows makes
        the bits equal."""
        target, settings = self.pair.target, self.settings
        if not settings.sampling.greedy or target.dtype == torch.float32:
            return None
        rows = fixed_rows(target, settings.shape.most_nodes + 1)
        return None if rows is None else replace(self, settings=replace(settings, fixed_rows=rows))


@dataclass(frozen=True)
class Turn:
    """Which run a cycle belongs to."""

    repeat: int
    prompt: int
    method: Method


@dataclass(frozen=True)
class Run:
    """One prompt decoded once with one method; unfinished where it was stopped."""

    cycles: tuple[Cycle, ...]

    @property
    def finished(self) -> bool:
        return bool(self.cycles) and self.cycles[-1].finish is not None

    @property
    def token_ids(self) -> list[int]:
        return [token for cycle in self.cycles for token in cycle.emitted_ids]

    @property
    def seconds(self) -> float:
        """Decoding time, the prompt's prefill not included."""
        return sum(cycle.times.total for cycle in self.cycles)

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds


@dataclass(frozen=True)
class MethodFigures:
    """A method over all its runs. `acceptance_length` is tokens per target pass, `acceptance_rate` accepted / drafted
    on the longest path (None where nothing was drafted), `cycle_seconds` the mean of each part of a cycle, and
    `explained` the share of its wall time that the parts add up to (None where nobody took that)."""

    tokens_per_second: Spread
    acceptance_length: float
    acceptance_rate: float | None
    rejections: int
    out_of_vocabulary: int
    prefill_seconds: float
    cycle_seconds: CycleTimes
    explained: float | None
    speedup_vs_vanilla: Spread | None
    speedup_vs_untrimmed: Spread | None


@dataclass(frozen=True)
class Difference:
    """Where a method's greedy output first leaves vanilla's: token `position` of the output of `prompt`.

    `vanilla_id` and `other_id` are the two tokens (None where one output had ended), `logit_margin` is by how much the
    target's logits prefer vanilla's.
    """

    prompt: int
    method: Method
    position: int
    vanilla_id: int | None
    other_id: int | None
    logit_margin: float | None


@dataclass(frozen=True)
class Comparison:
    """Figures by method. `identical` is None when sampling, where only the distribution is the same, and where nothing
    has finished that could be compared with vanilla.

    With `fixed_rows`, `identical` and `differences` are those of runs in which every target pass computed so many rows
    (see `GenerationSettings`); without, those of the timed runs, whose differences are `timed_differences` always.
    """

    methods: dict[Method, MethodFigures]
    identical: bool | None
    differences: tuple[Difference, ...]
    repeats: int
    fixed_rows: int | None
    timed_differences: tuple[Difference, ...]


def play(contest: Contest, prompts: Sequence[list[int]], repeats: int) -> Iterator[tuple[Turn, Cycle]]:
    """Decode every prompt with every method, `repeats` times, never two at once; yields each cycle as it ends.

    Methods are interleaved prompt by prompt and their order rotates, so that a drift of the machine's speed or a warm
    cache favours none of them. The very first runs, one a method on the first prompt, are in the plain order.
    """
    return ((turn, cycle) for _, turn, cycle in play_all([contest], prompts, repeats))


def play_all(
    contests: Sequence[Contest], prompts: Sequence[list[int]], repeats: int
) -> Iterator[tuple[int, Turn, Cycle]]:
    """The same with several drafters of one target: which contest each cycle belongs to comes first.

    Vanilla decoding is the same in all of them and is played once, as the first contest's.
    """
    entries = [
        (number, method)
        for number, contest in enumerate(contests)
        for method in contest.methods
        if number == 0 or method != "vanilla"
    ]
    for repeat in range(repeats):
        for prompt, prompt_ids in enumerate(prompts):
            start = (repeat + prompt) % len(entries)
            for number, method in entries[start:] + entries[:start]:
                turn = Turn(repeat, prompt, method)
                yield from ((number, turn, cycle) for cycle in clocked(contests[number].cycles(method, prompt_ids)))


def clocked(cycles: Iterator[Cycle]) -> Iterator[Cycle]:
    """The cycles with the `wall` time that each took, by a clock outside the engine."""
    while True:
        began = time.perf_counter()
        cycle = next(cycles, None)
        if cycle is None:
            return
        wall = time.perf_counter() - began - cycle.times.prefill
        yield replace(cycle, times=replace(cycle.times, wall=wall))


def warm_up(contest: Contest, prompt_ids: list[int]) -> None:
    """Run a few cycles of each method, so that what is set up once is not timed."""
    for method in contest.methods:
        for _ in itertools.islice(contest.cycles(method, prompt_ids), 3):
            pass


def collect(played: Iterator[tuple[Turn, Cycle]]) -> dict[Turn, Run]:
    """All runs of `play`, to the end."""
    cycles: dict[Turn, list[Cycle]] = {}
    for turn, cycle in played:
        cycles.setdefault(turn, []).append(cycle)
    return {turn: Run(tuple(found)) for turn, found in cycles.items()}


def drafted_lengths(prompts: Sequence[list[int]], runs: Mapping[Turn, Run]) -> list[tuple[int, int]]:
    """Tokens of each prompt and of the longest output that a drafter finished after it."""
    longest: dict[int, int] = {}
    for turn, run in runs.items():
        if run.finished and turn.method != "vanilla":
            longest[turn.prompt] = max(len(run.token_ids), longest.get(turn.prompt, 0))
    return [(len(prompts[number]), output) for number, output in longest.items()]


def summarise(
    contest: Contest,
    prompts: Sequence[list[int]],
    runs: Mapping[Turn, Run],
    at_fixed_rows: Mapping[Turn, Run] | None = None,
) -> Comparison:
    """Figures of the finished runs. Speeds of a repeat are total tokens / total seconds over the prompts that every
    method finished in it, and speedups are ratios within a repeat.

    `at_fixed_rows` are untimed runs of `contest.at_fixed_rows()`: where there are any to compare, the texts compared
    are theirs.
    """
    done = {turn: run for turn, run in runs.items() if run.finished}
    speeds = _speeds(done)
    figures = {
        method: _figures(method, [run for turn, run in done.items() if turn.method == method], speeds)
        for method in METHODS
        if any(turn.method == method for turn in done)
    }
    repeats = len({turn.repeat for turn in done})
    if not contest.settings.sampling.greedy:
        return Comparison(figures, None, (), repeats, None, ())
    target = contest.pair.target
    timed = tuple(_differences(target, prompts, done))
    fixed = contest.at_fixed_rows()
    exact = {turn: run for turn, run in (at_fixed_rows or {}).items() if run.finished}
    if fixed is not None and _comparable(exact):
        rows, found = fixed.settings.fixed_rows, tuple(_differences(target, prompts, exact))
        return Comparison(figures, not found, found, repeats, rows, timed)
    return Comparison(figures, not timed if _comparable(done) else None, timed, repeats, None, timed)


def _comparable(done: Mapping[Turn, Run]) -> bool:
    return any(_vanilla_of(turn) in done for turn in done if turn.method != "vanilla")


def _speeds(done: Mapping[Turn, Run]) -> list[dict[Method, float]]:
    """Tokens per second by method, for each repeat."""
    speeds: list[dict[Method, float]] = []
    for repeat in sorted({turn.repeat for turn in done}):
        here = {turn: run for turn, run in done.items() if turn.repeat == repeat}
        methods = [method for method in METHODS if any(turn.method == method for turn in here)]
        numbers = set.intersection(*({turn.prompt for turn in here if turn.method == method} for method in methods))
        speeds.append({})
        for method in methods if numbers else ():
            mine = [here[Turn(repeat, number, method)] for number in numbers]
            speeds[-1][method] = sum(len(run.token_ids) for run in mine) / sum(run.seconds for run in mine)
    return speeds


def _figures(method: Method, runs: list[Run], speeds: list[dict[Method, float]]) -> MethodFigures:
    cycles = [cycle for run in runs for cycle in run.cycles]
    drafted = sum(cycle.depth for cycle in cycles)
    rejected = [cycle for cycle in cycles if cycle.own_token == "correction"]
    parts = {part.name: [getattr(cycle.times, part.name) for cycle in cycles] for part in fields(CycleTimes)}
    mean = CycleTimes(**{name: sum(seconds) / len(cycles) for name, seconds in parts.items()})
    own = [speed[method] for speed in speeds if method in speed] or [run.tokens_per_second for run in runs]

    def speedup(over: Method) -> Spread | None:
        ratios = [speed[method] / speed[over] for speed in speeds if {method, over} <= speed.keys()]
        return Spread.of(ratios) if ratios and method != over else None

    return MethodFigures(
        tokens_per_second=Spread.of(own),
        acceptance_length=sum(len(run.token_ids) for run in runs) / len(cycles),
        acceptance_rate=sum(cycle.accepted for cycle in cycles) / drafted if drafted else None,
        rejections=len(rejected),
        out_of_vocabulary=sum(cycle.out_of_vocabulary for cycle in rejected),
        prefill_seconds=sum(run.cycles[0].times.prefill for run in runs) / len(runs),
        cycle_seconds=mean,
        explained=mean.total / mean.wall if mean.wall else None,
        speedup_vs_vanilla=speedup("vanilla"),
        speedup_vs_untrimmed=speedup("untrimmed") if method == "trimmed" else None,
    )


def _vanilla_of(turn: Turn) -> Turn:
    return Turn(turn.repeat, turn.prompt, "vanilla")


def _differences(target: LanguageModel, prompts: Sequence[list[int]], done: Mapping[Turn, Run]) -> Iterator[Difference]:
    for turn, run in sorted(done.items(), key=lambda item: (item[0].prompt, item[0].method, item[0].repeat)):
        vanilla = done.get(_vanilla_of(turn))
        if turn.method == "vanilla" or vanilla is None or vanilla.token_ids == run.token_ids:
            continue
        pairs = list(itertools.zip_longest(vanilla.token_ids, run.token_ids))
        position = next(i for i, (ours, theirs) in enumerate(pairs) if ours != theirs)
        ours, theirs = pairs[position]
        margin = None
        if ours is not None and theirs is not None:
            context = [*prompts[turn.prompt], *run.token_ids[:position]]
            margin = logit_margin(target, context, ours, theirs)
        yield Difference(turn.prompt, turn.method, position, ours, theirs, margin)


@torch.inference_mode()
def logit_margin(target: LanguageModel, context: list[int], token_id: int, other_id: int) -> float:
    """By how much the target's next-token logit of `token_id` exceeds that of `other_id` after `context`."""
    hidden = target.new_backbone().run(torch.tensor(context))
    logits = target.head.logits(hidden[-1:])[0].float()
    return float(logits[token_id] - logits[other_id])
