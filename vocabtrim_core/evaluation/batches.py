"""Vanilla, untrimmed and trimmed decoding of several sequences at once, by the size of the batch.

Speculation spends computation to save reading weights. A batch shares that reading already, so that the gain shrinks as
the batch grows: this measures by how much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vocabtrim_core.decoding.lockstep import decode_together
from vocabtrim_core.errors import ModelError
from vocabtrim_core.evaluation.comparison import METHODS, Contest, Method
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.models import ModelPair
from vocabtrim_core.progress import Progress


@dataclass(frozen=True)
class BatchRun:
    """All texts decoded once, `size` at a time: their ids, the cycles of all, the target's passes, and the seconds
    without the prompts' passes."""

    texts: tuple[tuple[int, ...], ...]
    cycles: int
    passes: int
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))


@dataclass(frozen=True)
class BatchFigures:
    """A method at one size of the batch. Speeds are those of the whole batch; speedups are over the same size, within a
    repeat. `acceptance_length` is tokens per sequence and target pass, `sequences` how many ran in a pass on average
    (fewer than `size` at the end), `differing` how many texts are not vanilla's of the first size (None: sampled)."""

    tokens_per_second: Spread
    acceptance_length: float
    sequences: float
    speedup_vs_vanilla: Spread | None
    speedup_vs_untrimmed: Spread | None
    differing: int | None


Turn = tuple[int, int, Method]
"""Repeat, size of the batch, method."""


def check_batches(pair: ModelPair) -> None:
    """Raise `ModelError` where a model cannot run several sequences in one pass."""
    for model in (pair.target, pair.drafter):
        if model.engine.name == "transformers":
            raise ModelError(
                f"{model.name} runs through transformers ({model.engine.reason}), which decodes one sequence at a time "
                "here. Batches need models of the Llama family; compare this pair without --batch."
            )


def play_batches(
    contest: Contest, prompts: Sequence[list[int]], sizes: Sequence[int], repeats: int, on_progress: Progress
) -> dict[Turn, BatchRun]:
    """Decode as many texts at every size, with every method. Where a batch is larger than the list of prompts, that
    begins again; with sampling each text draws from a seed of its own.

    Methods are interleaved within a size, sizes within a repeat, and the methods' order rotates, so that a drift of
    the machine's speed favours none of them.
    """
    texts = [prompts[number % len(prompts)] for number in range(max(len(prompts), *sizes))]
    turns = list(_turns(contest, sizes, repeats))
    for method in contest.methods:
        for size in sizes:
            _warm_up(contest, method, texts, size)
    runs: dict[Turn, BatchRun] = {}
    for done, turn in enumerate(turns):
        repeat, size, method = turn
        on_progress(done / len(turns), f"Repeat {repeat + 1}, batch of {size}: {method}")
        runs[turn] = _run(contest, method, texts, size)
    return runs


def _turns(contest: Contest, sizes: Sequence[int], repeats: int) -> Iterator[Turn]:
    methods = contest.methods
    for repeat in range(repeats):
        for place, size in enumerate(sizes):
            start = (repeat + place) % len(methods)
            yield from ((repeat, size, method) for method in methods[start:] + methods[:start])


def _run(contest: Contest, method: Method, prompts: Sequence[list[int]], size: int) -> BatchRun:
    seed = contest.settings.sampling.seed
    decodings = (contest.decoding(method, prompt, (seed + i) % 2**63) for i, prompt in enumerate(prompts))
    texts: list[list[int]] = [[] for _ in prompts]
    cycles = passes = 0
    seconds = 0.0
    for round in decode_together(decodings, size):
        passes += 1
        cycles += len(round.cycles)
        seconds += round.seconds
        for number, cycle in round.cycles.items():
            texts[number] += cycle.emitted_ids
    return BatchRun(tuple(map(tuple, texts)), cycles, passes, seconds)


def _warm_up(contest: Contest, method: Method, prompts: Sequence[list[int]], size: int) -> None:
    """A few rounds after the prompts' first tokens, so that what is set up once is not timed."""
    rounds = decode_together((contest.decoding(method, prompt[:8], 0) for prompt in prompts[:size]), size)
    for _ in zip(range(3), rounds, strict=False):
        pass


def summarise_batches(
    contest: Contest, runs: dict[Turn, BatchRun], sizes: Sequence[int], repeats: int
) -> dict[int, dict[Method, BatchFigures]]:
    """Figures by size and method."""
    greedy = contest.settings.sampling.greedy
    expected = runs[0, sizes[0], "vanilla"].texts

    def speeds(size: int, method: Method) -> list[float]:
        mine = [runs[repeat, size, method] for repeat in range(repeats)]
        return [run.tokens / run.seconds for run in mine]

    def speedup(size: int, method: Method, over: Method) -> Spread:
        return Spread.of([a / b for a, b in zip(speeds(size, method), speeds(size, over), strict=True)])

    def figures(size: int, method: Method) -> BatchFigures:
        mine = [runs[repeat, size, method] for repeat in range(repeats)]
        cycles = sum(run.cycles for run in mine)
        return BatchFigures(
            tokens_per_second=Spread.of(speeds(size, method)),
            acceptance_length=sum(run.tokens for run in mine) / cycles,
            sequences=cycles / sum(run.passes for run in mine),
            speedup_vs_vanilla=speedup(size, method, "vanilla") if method != "vanilla" else None,
            speedup_vs_untrimmed=speedup(size, method, "untrimmed") if method == "trimmed" else None,
            differing=sum(a != b for a, b in zip(expected, mine[0].texts, strict=True)) if greedy else None,
        )

    return {size: {method: figures(size, method) for method in METHODS if method in contest.methods} for size in sizes}
