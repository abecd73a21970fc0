"""`compare --batch`: the methods at several sizes of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from vocabtrim_core.commands.printing import table, times
from vocabtrim_core.decoding.context import context_notes
from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.batches import check_batches, play_batches, summarise_batches
from vocabtrim_core.evaluation.comparison import Contest
from vocabtrim_core.progress import Progress

MAX_BATCH = 64


def check_sizes(sizes: Sequence[int]) -> None:
    """SettingError where a size cannot be one, or comes twice."""
    wrong = [size for size in sizes if not 1 <= size <= MAX_BATCH]
    if wrong or len(set(sizes)) < len(sizes):
        problem = f"has {wrong[0]}" if wrong else "has a size twice"
        raise SettingError(f"--batch {problem}; choose different sizes from 1 to {MAX_BATCH}, such as 1,2,4,8.")


def run(contest: Contest, prompts: Sequence[list[int]], sizes: Sequence[int], repeats: int, report: Progress) -> dict:
    """The figures by size and method. ModelError where a model cannot run a batch."""
    check_batches(contest.pair)
    runs = play_batches(contest, prompts, sizes, repeats, report)
    texts = next(iter(runs.values())).texts  # each method's are of the same lengths, but for near ties
    found = summarise_batches(contest, runs, sizes, repeats)
    return {
        "batches": [
            {"batch": size, "methods": {method: asdict(figures) for method, figures in methods.items()}}
            for size, methods in found.items()
        ],
        "texts": len(texts),
        "notes": context_notes(
            contest.pair.drafter, [(len(prompts[i % len(prompts)]), len(text)) for i, text in enumerate(texts)]
        ),
    }


def describe(result: dict) -> list[str]:
    """A table, and what became of the gain."""
    rows: list[tuple[str, ...]] = [
        ("batch", "", "tok/s", "low-high", "tokens/cycle", "sequences", "vs vanilla", "vs untrimmed")
    ]
    for batch in result["batches"]:
        for method, figures in batch["methods"].items():
            speed = figures["tokens_per_second"]
            speedups = figures["speedup_vs_vanilla"], figures["speedup_vs_untrimmed"]
            rows.append(
                (
                    str(batch["batch"]),
                    method,
                    f"{speed['median']:.1f}",
                    f"{speed['low']:.1f}-{speed['high']:.1f}",
                    f"{figures['acceptance_length']:.2f}",
                    f"{figures['sequences']:.1f}",
                    *(times(spread) if spread else "-" for spread in speedups),
                )
            )
    best = "trimmed" if "trimmed" in result["batches"][0]["methods"] else "untrimmed"
    gains = ", ".join(
        f"{batch['methods'][best]['speedup_vs_vanilla']['median']:.2f}x at {batch['batch']}"
        for batch in result["batches"]
    )
    return [
        *table(rows),
        "Speeds are those of the whole batch, each speedup over the same size; sequences is how many ran in a pass on "
        "average.",
        "",
        f"Over vanilla decoding, by size of the batch, {best}: {gains}.",
        _agreement(result),
    ]


def _agreement(result: dict) -> str:
    differing = [
        (figures["differing"], method, batch["batch"])
        for batch in result["batches"]
        for method, figures in batch["methods"].items()
    ]
    if differing[0][0] is None:
        return "With sampling the outputs share a distribution, not their tokens."
    most, method, size = max(differing)
    if not most:
        return "All outputs are identical."
    return (
        f"Outputs that differ from vanilla's at the first size: at most {most} of {result['texts']} ({method}, batch "
        f"of {size}). The number of rows in a pass changes its rounding, and so near ties."
    )
