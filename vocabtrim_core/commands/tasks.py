"""What `tune` and `bench` share: prompts by task, in tokens, and the contest to run on them."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence

from vocabtrim_core.commands import decoding, loading
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.defaults import BUILTIN
from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.comparison import Contest
from vocabtrim_core.evaluation.trace import TunePrompt
from vocabtrim_core.models import load_pair
from vocabtrim_core.progress import Progress
from vocabtrim_core.prompts import Prompt, read_prompts, task_prompts
from vocabtrim_core.tokenization import Tokenizer
from vocabtrim_core.vocabulary import Ranking

MAX_REPEATS = 1000


def chosen_prompts(source: str, limit: int | None) -> list[Prompt]:
    """The prompts of a file, or those that come with the project: at most `limit` of each task."""
    if limit is not None and limit < 1:
        raise SettingError(f"--limit is {limit}; choose 1 or more.")
    prompts = task_prompts() if source == BUILTIN else read_prompts(source)
    if not prompts:
        raise SettingError(f"{source} holds no prompts.")
    seen: Counter[str | None] = Counter()
    chosen = []
    for prompt in prompts:
        seen[prompt.task] += 1
        if limit is None or seen[prompt.task] <= limit:
            chosen.append(prompt)
    return chosen


def in_tokens(prompts: Sequence[Prompt], tokenizer: Tokenizer) -> list[TunePrompt]:
    """The prompts as the target reads them."""
    return [
        TunePrompt(tuple(tokenizer.encode_prompt(prompt.text)), prompt.task or "", prompt.where or "")
        for prompt in prompts
    ]


def open_contest(arguments: Namespace, settings: GenerationSettings, report: Progress) -> tuple[Contest, Ranking]:
    """The pair with its ranked head, and the ranking. SettingError for a drafter without a head."""
    counts = loading.open_counts(arguments.counts)
    pair = load_pair(arguments.target, arguments.drafter, arguments.dtype, on_progress=report)
    kept = decoding.trimming(pair, counts, arguments.counts, None)
    if kept is None:
        raise SettingError(f"The drafter {pair.drafter.name} has no head to trim, so there is no k to tune.")
    stop = decoding.stop_condition(pair.target, pair.tokenizer, arguments)
    return Contest(pair, kept.head, kept.k, settings, stop), kept.ranking


def check_repeats(arguments: Namespace) -> None:
    if not 1 <= arguments.repeats <= MAX_REPEATS:
        raise SettingError(f"--repeats is {arguments.repeats}; choose from 1 to {MAX_REPEATS}.")
