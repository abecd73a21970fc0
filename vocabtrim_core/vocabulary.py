"""Which tokens a drafter keeps: the ranking of all tokens, and the draft vocabulary that is a prefix of it.

A ranking has three parts: forced and pinned tokens, which every draft vocabulary keeps; the others by what they are
worth; and banned tokens, which only the whole vocabulary has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vocabtrim_core.errors import SettingError
from vocabtrim_core.token_text import byte_fallback_ids
from vocabtrim_core.tokenization import Tokenizer


@dataclass(frozen=True, eq=False)
class Ranking:
    """All usable token ids, the most worth keeping first: every draft vocabulary is `ids[:k]`.

    `ids` is int64[V] without duplicates; its first `forced` entries (pinned tokens among them) are in every draft
    vocabulary, its first `observed` entries are forced or were counted, and its last `banned` entries are in no draft
    vocabulary but the whole one. What follows the observed tokens is filler in ascending order of id.
    """

    ids: np.ndarray
    forced: int
    observed: int
    name: str
    banned: int = 0

    @property
    def vocab_size(self) -> int:
        return len(self.ids)

    @property
    def largest_k(self) -> int:
        """The largest draft vocabulary that leaves the banned tokens out."""
        return len(self.ids) - self.banned

    @property
    def digest(self) -> str:
        """Sha256 of the ids: two rankings with the same digest trim alike."""
        return hashlib.sha256(self.ids.astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """The first k tokens of a ranking in EAGLE-3's layout.

    `kept_ids` int64[k] ascending; `d2t` int64[k] offsets, target_id = draft_id + d2t[draft_id]; `t2d` bool[V].
    """

    kept_ids: np.ndarray
    d2t: np.ndarray
    t2d: np.ndarray


def forced_token_ids(tokenizer: Tokenizer, eos_ids: Iterable[int] = ()) -> np.ndarray:
    """Ids that every draft vocabulary keeps, int64 ascending.

    They are the control tokens (of chats and tools too), every end-of-sequence token (`eos_ids` are those of a model's
    config and generation config), and the tokens of byte fallback. Added tokens that spell text (Gemma's HTML tags and
    runs of line breaks) or stand for nothing yet (its 6,242 `<unused..>`) are ranked by their counts like any other.
    """
    control = [*tokenizer.control_ids, *tokenizer.eos_ids, *eos_ids, *byte_fallback_ids(tokenizer)]
    return np.unique(np.array(control, dtype=np.int64))


def rank_tokens(
    counts: np.ndarray,
    forced: Iterable[int],
    name: str,
    usable: int | None = None,
    *,
    pinned: Iterable[int] = (),
    banned: Iterable[int] = (),
) -> Ranking:
    """Rank by descending count, ties by ascending id, forced tokens first (FR-Spec section 3.1; speculators' order).

    `counts` is [V]: int64 counts, or float64 shares (see `mixing`). `usable` cuts the ids to those that target,
    drafter and tokenizer all have (padded vocabularies); counts of ids beyond it are not ranked. `pinned` joins the
    forced tokens, `banned` comes last. SettingError for an id outside the vocabulary, or one that is banned and has
    to be kept.
    """
    usable = len(counts) if usable is None else usable
    padded = np.zeros(usable, dtype=counts.dtype)
    padded[: min(usable, len(counts))] = counts[:usable]
    forced_ids = _checked_ids(forced, usable, "forced", "Check that the tokenizer belongs to the models.")
    pinned_ids = _checked_ids(pinned, usable, "pinned", "Pin tokens of this tokenizer.")
    banned_ids = _checked_ids(banned, usable, "banned", "Ban tokens of this tokenizer.")
    for kept, why in ((forced_ids, "the models need them"), (pinned_ids, "they are pinned")):
        clash = np.intersect1d(kept, banned_ids)
        if len(clash):
            raise SettingError(f"Tokens that are banned must stay, because {why}: {_first_ids(clash)}. Unban them.")
    group = np.ones(usable, dtype=np.int8)
    group[forced_ids] = group[pinned_ids] = 0
    group[banned_ids] = 2
    order = np.argsort(-padded, kind="stable")
    # A stable sort by group keeps the same order rule inside each.
    ids = order[np.argsort(group[order], kind="stable")]
    first, last = np.count_nonzero(group == 0), np.count_nonzero(group == 2)
    observed = first + np.count_nonzero(padded[group == 1])
    return Ranking(ids, int(first), int(observed), name, int(last))


def ranking_among(ranking: Ranking, ids: np.ndarray) -> Ranking:
    """`ranking` without the tokens that are not in `ids`, as where a drafter's head was trained for these only."""
    available = np.isin(ranking.ids, ids)
    if available.all():
        return ranking
    if not available.any():
        raise SettingError("The drafter's head has no token of this ranking. Choose counts made with its tokenizer.")
    forced, observed = (int(available[:count].sum()) for count in (ranking.forced, ranking.observed))
    banned = int(available[ranking.largest_k :].sum())
    return Ranking(ranking.ids[available], forced, observed, ranking.name, banned)


def check_k(ranking: Ranking, k: int) -> int:
    """`k` itself where a draft vocabulary of that size exists, else `SettingError`."""
    low, high = max(1, ranking.forced), ranking.vocab_size
    if not low <= k <= high:
        raise SettingError(
            f"k = {k:,} is outside {low:,}..{high:,}: every draft vocabulary keeps the {ranking.forced} forced tokens, "
            f"and the vocabulary has {high:,} tokens. Choose k in between."
        )
    if ranking.largest_k < k < high:
        raise SettingError(
            f"k = {k:,} would take in some of the {ranking.banned:,} banned tokens. Choose at most "
            f"{ranking.largest_k:,}, or {high:,} for the whole vocabulary."
        )
    return k


def draft_vocabulary(ranking: Ranking, k: int, target_vocab_size: int | None = None) -> DraftVocabulary:
    """The draft vocabulary of size k. Raises `SettingError` where there is none.

    `target_vocab_size` is that of the target's config, which pads beyond the tokens that are ranked: a checkpoint's
    `t2d` has one entry for each row of the target's head. Without it, V is the ranking's.
    """
    kept = np.sort(ranking.ids[: check_k(ranking, k)])
    size = ranking.vocab_size if target_vocab_size is None else target_vocab_size
    if size < ranking.vocab_size:
        raise SettingError(
            f"The target's vocabulary of {size:,} tokens is smaller than that of the ranking ({ranking.vocab_size:,}). "
            "Use a ranking made for this target."
        )
    t2d = np.zeros(size, dtype=bool)
    t2d[kept] = True
    return DraftVocabulary(kept, kept - np.arange(k, dtype=np.int64), t2d)


def _checked_ids(token_ids: Iterable[int], usable: int, what: str, advice: str) -> np.ndarray:
    """int64, ascending, without duplicates; SettingError where one is outside the vocabulary."""
    ids = np.unique(np.fromiter(token_ids, dtype=np.int64))
    outside = ids[(ids < 0) | (ids >= usable)]
    if len(outside):
        raise SettingError(
            f"A {what} token id lies outside the vocabulary of {usable:,} tokens ({_first_ids(outside)}). {advice}"
        )
    return ids


def _first_ids(ids: np.ndarray) -> str:
    return ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "")
