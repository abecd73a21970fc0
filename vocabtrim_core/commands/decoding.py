"""What the commands that decode share: the trimmed head, and the decoding settings from the arguments."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import torch

from vocabtrim_core.commands.loading import check_tokenizer
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.defaults import DRAFTERS
from vocabtrim_core.errors import SettingError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.models import ModelPair
from vocabtrim_core.number_format import number_format
from vocabtrim_core.prompts import is_unicode
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.shipped import shipped_counts_path, shipped_tuning
from vocabtrim_core.tokenization import Tokenizer
from vocabtrim_core.trees import DraftShape
from vocabtrim_core.vocabulary import Ranking, check_k, forced_token_ids, rank_tokens, ranking_among


@dataclass(frozen=True, eq=False)
class Trimming:
    """A drafter's head in the order of a ranking of what it can propose, and the k to trim it to."""

    ranking: Ranking
    head: RankedHead
    k: int


def trimming(pair: ModelPair, counts: TokenCounts, path: Path | None, k: int | None) -> Trimming | None:
    """What the pair's drafter keeps, by the calibration `counts` that `open_counts(path)` gave; None without a head.

    Without `k` it is what was fastest in the pair's number format, or all tokens where there are fewer.
    """
    if pair.drafter.head is None:
        return None
    check_tokenizer(counts, pair.tokenizer, path)
    forced = forced_token_ids(pair.tokenizer, pair.target.eos_ids)
    name = Path(path or shipped_counts_path()).stem
    every = rank_tokens(counts.calibration, forced, name, pair.usable_vocab_size)
    ranking = ranking_among(every, pair.drafter.head.ranking.numpy())
    size = check_k(ranking, min(shipped_tuning(pair.target.number_format).k, ranking.vocab_size) if k is None else k)
    return Trimming(ranking, pair.drafter.head.reordered(torch.from_numpy(ranking.ids)), size)


def generation_settings(arguments: Namespace) -> GenerationSettings:
    """The decoding options as settings. SettingError where one is out of its range.

    Where no shape of draft is given it is what was fastest in the number format. Trees are then left to the drafters
    that come with the project, since not every model can read one.
    """
    check_stops(arguments)
    tuning = shipped_tuning(number_format(arguments.dtype).name)
    tree = DraftShape(*arguments.tree) if arguments.tree else None
    if tree is None and arguments.gamma is None and tuning.tree and arguments.drafter in (*DRAFTERS, "all"):
        tree = DraftShape(*tuning.tree)
    gamma = tuning.gamma if arguments.gamma is None else arguments.gamma
    return GenerationSettings(gamma, arguments.max_new_tokens, sampling_settings(arguments), tree)


def check_stops(arguments: Namespace) -> None:
    """SettingError where a stop string cannot be one."""
    if not all(stop and is_unicode(stop) for stop in arguments.stop):
        raise SettingError("A stop string is empty or not valid Unicode text. Leave --stop out, or give it some text.")


def sampling_settings(arguments: Namespace) -> SamplingSettings:
    """The sampling options as settings. SettingError where one is out of its range."""
    return SamplingSettings(arguments.temperature, arguments.top_k, arguments.top_p, arguments.min_p, arguments.seed)


def stop_condition(target: LanguageModel, tokenizer: Tokenizer, arguments: Namespace) -> StopCondition:
    """Stop at the target's end-of-sequence tokens and at the strings that were given."""
    return StopCondition(frozenset(target.eos_ids), tuple(arguments.stop), tokenizer.decode)
