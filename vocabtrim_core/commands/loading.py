"""What several commands load: tokenizers, models, rankings, and decoding settings from the arguments."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import torch

from vocabtrim_core import defaults
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.embedded import Progress, embedded_target_folder
from vocabtrim_core.errors import SettingError, TokenizerError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.models import EMBEDDED, LanguageModel, ModelPair
from vocabtrim_core.prompts import is_unicode
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.shipped import shipped_counts_path
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer
from vocabtrim_core.trees import DraftShape
from vocabtrim_core.vocabulary import Ranking, check_k, forced_token_ids, rank_tokens, ranking_among


def open_tokenizer(source: str, report: Progress) -> Tokenizer:
    """The tokenizer of a folder, of a hub id or of the embedded target."""
    return load_tokenizer(embedded_target_folder(report) if source == EMBEDDED else source)


def check_out(path: Path | None, suffix: str, what: str) -> None:
    """Refuse a place to save to, before the work. `what` begins the sentence: "Counts are"."""
    if path and path.suffix != suffix:
        raise SettingError(f"{what} saved as a {suffix} file; {path} has another ending.")
    if path and not path.absolute().parent.is_dir():
        raise SettingError(f"The folder of {path} does not exist. Make it first, or save elsewhere.")


def open_counts(path: Path | None) -> TokenCounts:
    """The counts at `path`, or the shipped ones."""
    return TokenCounts.load(path or shipped_counts_path())


def check_tokenizer(counts: TokenCounts, tokenizer: Tokenizer, path: Path | None) -> None:
    """Refuse `counts`, which `open_counts(path)` gave, where another tokenizer made them."""
    if counts.tokenizer_fingerprint == tokenizer.fingerprint:
        return
    if path is None:
        raise SettingError(
            f"No ranking is shipped for the tokenizer {tokenizer.name}. Count a corpus with it "
            "(count FILE --tokenizer ... --out counts.npz) and give the result with --counts."
        )
    raise TokenizerError(
        f"{path} was counted with another tokenizer ({counts.tokenizer_name}) than {tokenizer.name}. Count the corpus "
        "again with this one."
    )


@dataclass(frozen=True, eq=False)
class Trimming:
    """A drafter's head in the order of a ranking of what it can propose, and the k to trim it to."""

    ranking: Ranking
    head: RankedHead
    k: int


def trimming(pair: ModelPair, counts: TokenCounts, path: Path | None, k: int | None) -> Trimming | None:
    """What the pair's drafter keeps, by the calibration `counts` that `open_counts(path)` gave; None without a head.

    Without `k` it is the default, or all tokens where there are fewer.
    """
    if pair.drafter.head is None:
        return None
    check_tokenizer(counts, pair.tokenizer, path)
    forced = forced_token_ids(pair.tokenizer, pair.target.eos_ids)
    name = Path(path or shipped_counts_path()).stem
    every = rank_tokens(counts.calibration, forced, name, pair.usable_vocab_size)
    ranking = ranking_among(every, pair.drafter.head.ranking.numpy())
    size = check_k(ranking, min(defaults.KEPT_TOKENS, ranking.vocab_size) if k is None else k)
    return Trimming(ranking, pair.drafter.head.reordered(torch.from_numpy(ranking.ids)), size)


def generation_settings(arguments: Namespace) -> GenerationSettings:
    """The decoding options as settings. SettingError where one is out of its range."""
    if not all(stop and is_unicode(stop) for stop in arguments.stop):
        raise SettingError("A stop string is empty or not valid Unicode text. Leave --stop out, or give it some text.")
    tree = DraftShape(*arguments.tree) if arguments.tree else None
    return GenerationSettings(arguments.gamma, arguments.max_new_tokens, sampling_settings(arguments), tree)


def sampling_settings(arguments: Namespace) -> SamplingSettings:
    """The sampling options as settings. SettingError where one is out of its range."""
    return SamplingSettings(arguments.temperature, arguments.top_k, arguments.top_p, arguments.min_p, arguments.seed)


def stop_condition(target: LanguageModel, tokenizer: Tokenizer, arguments: Namespace) -> StopCondition:
    """Stop at the target's end-of-sequence tokens and at the strings that were given."""
    return StopCondition(frozenset(target.eos_ids), tuple(arguments.stop), tokenizer.decode)
