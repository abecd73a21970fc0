"""The papers' tables for one's own pair: tokens per second, speedup and acceptance length by task and method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vocabtrim_core.evaluation.comparison import Run
from vocabtrim_core.evaluation.measuring import VANILLA, Measured, Point, figures
from vocabtrim_core.evaluation.trace import TunePrompt
from vocabtrim_core.prompts import TASKS

HEADINGS = {
    "translation": "MT",
    "conversation": "Conv.",
    "rag": "RAG",
    "math": "Math",
    "qa": "QA",
    "summarisation": "Summ.",
    "code": "Code",
}
ALL = "all"


@dataclass(frozen=True)
class TaskTable:
    """Measured figures by method (row) and task (column, the last one all prompts together).

    The first row is vanilla, the last the whole vocabulary; `retained` is the acceptance length as a share of the whole
    vocabulary's.
    """

    tasks: tuple[str, ...]
    prompts: tuple[int, ...]
    rows: tuple[tuple[Measured, ...], ...]

    @property
    def retained(self) -> tuple[tuple[float, ...], ...]:
        full = self.rows[-1]
        return tuple(tuple(one.tau / of.tau for one, of in zip(row, full, strict=True)) for row in self.rows)


def task_table(
    prompts: Sequence[TunePrompt], runs: Mapping[Point, list[list[Run]]], points: Sequence[Point]
) -> TaskTable:
    """Sort measured runs (see `measure`) by task; `points` without vanilla, the whole vocabulary the last."""
    names = {prompt.task for prompt in prompts}
    tasks = [*(task for task in TASKS if task in names), *sorted(names - set(TASKS))]
    chosen = [[i for i, prompt in enumerate(prompts) if prompt.task == task] for task in tasks]
    if len(tasks) > 1:
        tasks.append(ALL)
        chosen.append(list(range(len(prompts))))
    rows = tuple(tuple(figures(dict(runs), point, some) for some in chosen) for point in (VANILLA, *points))
    return TaskTable(tuple(tasks), tuple(map(len, chosen)), rows)
