"""Every option of every command, with values of every kind."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from fuzz import hostile
from fuzz.harness import Pantry, Run

from vocabtrim_core import cli


def commands() -> dict[str, argparse.ArgumentParser]:
    (choices,) = (action.choices for action in cli._parser()._actions if isinstance(action.choices, dict))
    return choices


def right_arguments(command: str, pantry: Pantry) -> list[str]:
    """Arguments that work, and fast."""
    short = ["--max-new-tokens", "3"]
    prompts = ["--prompts", str(pantry.prompts)]
    return {
        "count": [str(pantry.corpus), "--tokenizer", str(pantry.target)],
        "answer": [str(pantry.prompts), "--by", "target", "--out", "answers.jsonl", *pantry.pair[:4], *short],
        "coverage": [str(pantry.counts), "--tokenizer", str(pantry.target), "--k", "100"],
        "generate": ["--prompt", "The dog", "--k", "100", *pantry.pair, *short],
        "compare": [
            "--prompts",
            str(pantry.prompts),
            "--limit",
            "1",
            "--repeats",
            "1",
            "--k",
            "50",
            *pantry.pair,
            *short,
        ],
        "tune": [*prompts, "--gammas", "1", "--repeats", "1", *pantry.pair, *short],
        "bench": ["--tasks", str(pantry.prompts), "--k", "50", "--repeats", "1", *pantry.pair, *short],
    }[command]


def hostile_value(action: argparse.Action, pantry: Pantry, chance: random.Random) -> str:
    """Mostly of the kind that the option takes."""
    right = [pantry.target, pantry.drafter, pantry.counts, pantry.corpus, pantry.prompts]
    paths = hostile.paths(Path(), right)
    kind = chance.random()
    if action.choices and kind < 0.5:
        return str(chance.choice(list(action.choices)))
    if action.type in (int, float) and kind < 0.8:
        return hostile.number(chance)
    if action.type is Path and kind < 0.8:
        return chance.choice(paths)
    if callable(action.type) and kind < 0.8:
        value = hostile.listed(chance)
        return value if kind < 0.6 else f"{chance.choice(paths)}={hostile.number(chance)},{pantry.counts}=1e308"
    return chance.choice([*paths, *hostile.TEXTS, *hostile.NUMBERS, hostile.listed(chance)])


def test_options(chance: random.Random, pantry: Pantry, run: Run) -> None:
    """Bug: a value that nobody foresaw ends in a traceback, in work without end, or in a wrong exit code."""
    parsers = commands()
    command = chance.choice(sorted(parsers))
    actions = parsers[command]._actions
    arguments = right_arguments(command, pantry)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        action = chance.choice(actions)
        value = hostile_value(action, pantry, chance)
        if not action.option_strings:
            arguments = [value, *arguments[1:]] if chance.random() < 0.7 else [value, *arguments]
        elif action.nargs == 0:
            arguments = [*arguments, action.option_strings[-1]]
        elif chance.random() < 0.6:
            arguments = [*arguments, f"{action.option_strings[-1]}={value}"]
        else:
            arguments = [*arguments, action.option_strings[-1], value]
    run(command, *arguments)


def test_every_option_without_a_value(pantry: Pantry, run: Run) -> None:
    """Bug: `--option=--`, for which argparse hands on an empty list, ends in a traceback."""
    for command, parser in commands().items():
        for action in parser._actions:
            for option in action.option_strings:
                code, _, said = run(command, *right_arguments(command, pantry), f"{option}=--")
                assert code == 2 and ("expected one argument" in said or "explicit argument" in said), (option, said)
