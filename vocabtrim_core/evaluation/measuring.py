"""Chosen points run for real: every prompt with every method, one run at a time, interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.evaluation.comparison import Contest, Run
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.evaluation.trace import TunePrompt, seeded
from vocabtrim_core.progress import Progress
from vocabtrim_core.trees import DraftShape

VANILLA = (0, 0)
Point = tuple[int, int]
"""k and gamma; `VANILLA` is decoding without a drafter."""


@dataclass(frozen=True)
class Measured:
    """A point over all prompts: speedup is against vanilla, over the repeats; `tau` tokens per target pass."""

    k: int
    gamma: int
    tau: float
    tokens_per_second: Spread
    speedup: Spread


def measure(
    contest: Contest,
    prompts: Sequence[TunePrompt],
    points: Sequence[Point],
    repeats: int,
    on_progress: Progress,
    tree: DraftShape | None = None,
) -> tuple[list[Measured], dict[Point, list[list[Run]]]]:
    """Time the points and vanilla. Also the runs, by point, repeat and prompt. With `tree`, drafts are trees of that
    shape, and gamma in the points is its depth.

    The order rotates from prompt to prompt, so that a drift of the machine's speed favours none.
    """
    every = list(dict.fromkeys([VANILLA, *points]))
    runs: dict[Point, list[list[Run]]] = {point: [[] for _ in range(repeats)] for point in every}
    for point in every:
        _run(contest, prompts[0], 0, point, tree, longest=8)
    total, done = repeats * len(prompts) * len(every), 0
    for repeat in range(repeats):
        for number, prompt in enumerate(prompts):
            start = (repeat + number) % len(every)
            for point in every[start:] + every[:start]:
                k, gamma = point
                name = f"k = {k:,}, gamma = {gamma}" if gamma else "vanilla"
                on_progress(done / total, f"Measuring, repeat {repeat + 1}, prompt {number + 1}: {name}")
                runs[point][repeat].append(_run(contest, prompt, number, point, tree))
                done += 1
    return [figures(runs, point) for point in every], runs


def figures(runs: dict[Point, list[list[Run]]], point: Point, chosen: Sequence[int] | None = None) -> Measured:
    """One point's figures over all prompts, or over those with the numbers `chosen`."""

    def speeds(of: Point) -> list[float]:
        picked = [[row[i] for i in chosen] if chosen is not None else row for row in runs[of]]
        return [sum(len(run.token_ids) for run in row) / sum(run.seconds for run in row) for row in picked]

    own, vanilla = speeds(point), speeds(VANILLA)
    every = [run for row in runs[point] for i, run in enumerate(row) if chosen is None or i in chosen]
    tau = sum(len(run.token_ids) for run in every) / sum(len(run.cycles) for run in every)
    ratios = [one / other for one, other in zip(own, vanilla, strict=True)]
    return Measured(*point, tau, Spread.of(own), Spread.of(ratios))


def _run(
    contest: Contest,
    prompt: TunePrompt,
    number: int,
    point: Point,
    tree: DraftShape | None,
    longest: int | None = None,
) -> Run:
    k, gamma = point
    settings = contest.settings
    length = longest or settings.max_new_tokens
    how = GenerationSettings(max(1, gamma), length, seeded(settings.sampling, number), tree)
    one = replace(contest, k=k or contest.k, settings=how)
    return Run(tuple(one.cycles("trimmed" if gamma else "vanilla", list(prompt.ids))))
