"""`bench`: the papers' tables for one's own pair, measured, with the papers' figures beside them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict

from vocabtrim_core.commands import decoding
from vocabtrim_core.commands.tasks import check_repeats, chosen_prompts, in_tokens, open_contest
from vocabtrim_core.decoding.context import context_notes
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.evaluation.comparison import Run
from vocabtrim_core.evaluation.machine import this_machine
from vocabtrim_core.evaluation.measuring import VANILLA, measure
from vocabtrim_core.evaluation.papers import PUBLISHED
from vocabtrim_core.evaluation.tables import HEADINGS, TaskTable, task_table
from vocabtrim_core.evaluation.trace import TunePrompt, usable_prompts
from vocabtrim_core.number_format import number_format
from vocabtrim_core.progress import Progress
from vocabtrim_core.shipped import shipped_tuning
from vocabtrim_core.vocabulary import check_k


def run(arguments: Namespace, report: Progress) -> dict:
    """Measure every prompt with vanilla, the whole vocabulary and each k, interleaved."""
    check_repeats(arguments)
    decoding.check_stops(arguments)
    tuning = shipped_tuning(number_format(arguments.dtype).name)
    gamma = tuning.gamma if arguments.gamma is None else arguments.gamma
    settings = GenerationSettings(gamma, arguments.max_new_tokens, decoding.sampling_settings(arguments))
    texts = chosen_prompts(arguments.tasks, arguments.limit)
    contest, ranking = open_contest(arguments, settings, report)
    trimmed = sorted({check_k(ranking, k) for k in arguments.k if k != ranking.vocab_size})
    points = [(k, settings.gamma) for k in (*trimmed, ranking.vocab_size)]
    prompts, left_out = usable_prompts(contest.pair, in_tokens(texts, contest.pair.tokenizer), traced=False)
    _, runs = measure(contest, prompts, points, arguments.repeats, report)
    table = task_table(prompts, runs, points)
    return {
        "tasks": list(table.tasks),
        "prompts": list(table.prompts),
        "table": _rows(table, ranking.vocab_size),
        "published": [asdict(one) for one in PUBLISHED],
        "settings": {
            "target": contest.pair.target.name,
            "drafter": contest.pair.drafter.name,
            "ranking": ranking.name,
            "vocab_size": ranking.vocab_size,
            "gamma": settings.gamma,
            "repeats": arguments.repeats,
            "max_new_tokens": settings.max_new_tokens,
            **asdict(settings.sampling),
        },
        "left_out": left_out,
        "notes": context_notes(contest.pair.drafter, _lengths(prompts, runs[points[0]][0])),
        "number_format_note": contest.pair.target.format_note,
        "machine": {**asdict(this_machine()), "dtype": contest.pair.target.number_format},
    }


def describe(result: dict) -> str:
    """Three tables, and the papers' figures."""
    tasks = [HEADINGS.get(task, task) or "(none)" for task in result["tasks"]]
    lines = []
    for title, shown in (
        ("Tokens per second", lambda cell: f"{cell['tokens_per_second']['median']:.1f}"),
        ("Speedup against vanilla", lambda cell: f"{cell['speedup']['median']:.2f}x"),
        ("Acceptance length (share of the whole vocabulary's)", _length),
    ):
        rows = [("", *tasks)]
        rows += [(_name(row), *(shown(cell) for cell in row["cells"])) for row in result["table"]]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += [title]
        lines += ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        lines += [""]
    for paper in result["published"]:
        full = paper["full"]
        lengths = ", ".join(
            f"{'full' if k == full else f'{k:,}'} {tau:.2f} ({tau / paper['tau'][full]:.1%})"
            for k, tau in paper["tau"].items()
        )
        lines.append(f"{paper['source']}, {paper['setting']}: acceptance length {lengths}.")
        if paper["speedup"]:
            speeds = ", ".join(
                f"{'full' if k == full else f'{k:,}'} {value:.2f}x" for k, value in paper["speedup"].items()
            )
            lines.append(f"Its speedup: {speeds}.")
    lines += [*result["left_out"], *result["notes"]]
    settings, machine = result["settings"], result["machine"]
    lines += [
        "",
        f"gamma = {settings['gamma']}; prompts a task: {', '.join(map(str, result['prompts']))}; repeats: "
        f"{settings['repeats']}. {machine['dtype']} on {machine['threads']} threads of {machine['cpu']}.",
    ]
    return "\n".join(lines)


def _lengths(prompts: Sequence[TunePrompt], runs: Sequence[Run]) -> list[tuple[int, int]]:
    return [(len(prompt.ids), len(run.token_ids)) for prompt, run in zip(prompts, runs, strict=True)]


def _rows(table: TaskTable, full: int) -> list[dict]:
    rows = []
    for row, retained in zip(table.rows, table.retained, strict=True):
        k, gamma = row[0].k, row[0].gamma
        method = "vanilla" if (k, gamma) == VANILLA else "full" if k == full else "trimmed"
        cells = [
            {
                "task": task,
                "tau": one.tau,
                "retained": None if method == "vanilla" else share,
                "tokens_per_second": asdict(one.tokens_per_second),
                "speedup": asdict(one.speedup),
            }
            for task, one, share in zip(table.tasks, row, retained, strict=True)
        ]
        rows.append({"method": method, "k": k or None, "gamma": gamma or None, "cells": cells})
    return rows


def _name(row: dict) -> str:
    return row["method"] if row["method"] != "trimmed" else f"k = {row['k']:,}"


def _length(cell: dict) -> str:
    share = cell["retained"]
    return f"{cell['tau']:.2f}" + ("" if share is None else f" ({share:.1%})")
