"""Which tokens a drafter keeps: the ranking of all tokens, and the draft vocabulary that is a prefix of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vocabtrim_core.errors import SettingError
from vocabtrim_core.tokenization import Tokenizer


@dataclass(frozen=True, eq=False)
class Ranking:
    """All usable token ids, the most worth keeping first: every draft vocabulary is `ids[:k]`.

    `ids` is int64[V] without duplicates; its first `forced` entries are in every draft vocabulary, and its first
    `observed` entries are forced or were counted: what follows is filler in ascending order of id.
    """

    ids: np.ndarray
    forced: int
    observed: int
    name: str

    @property
    def vocab_size(self) -> int:
        return len(self.ids)

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
    """Ids that every draft vocabulary keeps: control tokens and every end-of-sequence token, int64 ascending."""
    return np.unique(np.array([*tokenizer.control_ids, *tokenizer.eos_ids, *eos_ids], dtype=np.int64))


def rank_tokens(counts: np.ndarray, forced: Iterable[int], name: str, usable: int | None = None) -> Ranking:
    """Rank by descending count, ties by ascending id, forced tokens first (FR-Spec section 3.1; speculators' order).

    `counts` is int64[V]. `usable` cuts the ids to those that target, drafter and tokenizer all have (padded
    vocabularies); counts of ids beyond it are not ranked.
    """
    usable = len(counts) if usable is None else usable
    padded = np.zeros(usable, dtype=np.int64)
    padded[: min(usable, len(counts))] = counts[:usable]
    first = np.unique(np.fromiter(forced, dtype=np.int64))
    if len(first) and (first[0] < 0 or first[-1] >= usable):
        raise SettingError(
            f"A forced token id lies outside the vocabulary of {usable:,} tokens ({first[0]}..{first[-1]}). "
            "Check that the tokenizer belongs to the models."
        )
    order = np.argsort(-padded, kind="stable")
    is_forced = np.zeros(usable, dtype=bool)
    is_forced[first] = True
    # Forced tokens keep the same order rule among themselves.
    ids = np.concatenate([order[is_forced[order]], order[~is_forced[order]]])
    observed = len(first) + int(np.count_nonzero(padded[~is_forced]))
    return Ranking(ids, len(first), observed, name)


def check_k(ranking: Ranking, k: int) -> int:
    """`k` itself where a draft vocabulary of that size exists, else `SettingError`."""
    low, high = max(1, ranking.forced), ranking.vocab_size
    if not low <= k <= high:
        raise SettingError(
            f"k = {k:,} is outside {low:,}..{high:,}: every draft vocabulary keeps the {ranking.forced} forced tokens, "
            f"and the vocabulary has {high:,} tokens. Choose k in between."
        )
    return k


def draft_vocabulary(ranking: Ranking, k: int) -> DraftVocabulary:
    """The draft vocabulary of size k. Raises `SettingError` where there is none."""
    kept = np.sort(ranking.ids[: check_k(ranking, k)])
    t2d = np.zeros(ranking.vocab_size, dtype=bool)
    t2d[kept] = True
    return DraftVocabulary(kept, kept - np.arange(k, dtype=np.int64), t2d)
