"""Ranking and draft vocabulary: permutations without duplicates, forced tokens first, EAGLE-3's offsets."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny_tokenizer import make_tiny_tokenizer
from vocabtrim_core.errors import SettingError
from vocabtrim_core.vocabulary import (
    Ranking,
    check_k,
    draft_vocabulary,
    forced_token_ids,
    rank_tokens,
    ranking_among,
)


@st.composite
def counts_and_forced(draw: st.DrawFn) -> tuple[np.ndarray, list[int]]:
    """Counts with many ties and zeros, and forced ids (with repeats) inside the vocabulary."""
    size = draw(st.integers(1, 40))
    counts = draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    forced = draw(st.lists(st.integers(0, size - 1), max_size=6))
    return np.array(counts, dtype=np.int64), forced


@given(counts_and_forced())
def test_a_ranking_is_every_id_once_with_forced_tokens_first(case: tuple[np.ndarray, list[int]]) -> None:
    """Bug: a token lost or kept twice (a forced one listed again by its count)."""
    counts, forced = case
    ranking = rank_tokens(counts, forced, "t")
    assert sorted(ranking.ids.tolist()) == list(range(len(counts)))
    assert ranking.ids.dtype == np.int64
    assert set(ranking.ids[: ranking.forced].tolist()) == set(forced)
    assert ranking.forced == len(set(forced))


@given(counts_and_forced())
def test_order_is_by_count_then_id_and_filler_comes_last(case: tuple[np.ndarray, list[int]]) -> None:
    """Bug: ties in an order that changes from run to run; uncounted tokens before counted ones; filler not by id."""
    counts, forced = case
    ranking = rank_tokens(counts, forced, "t")
    for part in (ranking.ids[: ranking.forced], ranking.ids[ranking.forced :]):
        keys = [(-int(counts[i]), int(i)) for i in part]
        assert keys == sorted(keys)
    unforced = ranking.ids[ranking.forced :]
    assert ranking.observed == ranking.forced + int((counts[unforced] > 0).sum())
    assert not counts[ranking.ids[ranking.observed :]].any()
    assert ranking.digest == rank_tokens(counts, reversed(forced), "another name").digest


@given(counts_and_forced(), st.data())
def test_offsets_and_mask_describe_the_same_tokens(case: tuple[np.ndarray, list[int]], data: st.DataObject) -> None:
    """Bug: `d2t` written as absolute ids, or ids not ascending: an EAGLE-3 reader maps drafts to other tokens."""
    ranking = rank_tokens(*case, "t")
    k = data.draw(st.integers(max(1, ranking.forced), ranking.vocab_size))
    vocabulary = draft_vocabulary(ranking, k)
    assert vocabulary.d2t.dtype == np.int64 and vocabulary.t2d.dtype == np.bool_
    assert len(vocabulary.d2t) == k and len(vocabulary.t2d) == ranking.vocab_size
    np.testing.assert_array_equal(np.nonzero(vocabulary.t2d)[0], vocabulary.d2t + np.arange(k))
    np.testing.assert_array_equal(vocabulary.kept_ids, vocabulary.d2t + np.arange(k))
    assert set(vocabulary.kept_ids.tolist()) == set(ranking.ids[:k].tolist())
    assert set(case[1]) <= set(vocabulary.kept_ids.tolist())


def test_mask_is_as_long_as_the_head_of_the_target() -> None:
    """Bug: a target that pads its vocabulary gets a `t2d` that is shorter than its head, which readers refuse."""
    ranking = rank_tokens(np.array([3, 0, 5, 1]), [0], "t")
    padded = draft_vocabulary(ranking, 2, target_vocab_size=7)
    assert padded.t2d.tolist() == [True, False, True, False, False, False, False]
    assert padded.d2t.tolist() == draft_vocabulary(ranking, 2).d2t.tolist()
    with pytest.raises(SettingError, match="smaller"):
        draft_vocabulary(ranking, 2, target_vocab_size=3)


@given(counts_and_forced())
def test_a_smaller_vocabulary_is_inside_every_larger_one(case: tuple[np.ndarray, list[int]]) -> None:
    """Bug: a token that is kept at some k disappears at a larger one."""
    ranking = rank_tokens(*case, "t")
    before: set[int] = set()
    for k in range(max(1, ranking.forced), ranking.vocab_size + 1):
        now = set(draft_vocabulary(ranking, k).kept_ids.tolist())
        assert before <= now and len(now) == k
        before = now


@pytest.mark.parametrize("k", [-1, 0, 1, 11])
def test_k_outside_the_vocabulary_is_refused_with_the_range(k: int) -> None:
    """Bug: a k below the forced tokens drops end-of-sequence; one above V gives a short list without a word."""
    ranking = rank_tokens(np.arange(10), [0, 5], "t")
    with pytest.raises(SettingError, match=r"outside 2\.\.10"):
        check_k(ranking, k)
    with pytest.raises(SettingError):
        draft_vocabulary(ranking, k)
    assert check_k(ranking, 2) == 2 and check_k(ranking, 10) == 10


def test_without_forced_tokens_k_starts_at_one() -> None:
    """Bug: k = 0, an empty head, is allowed where nothing is forced."""
    with pytest.raises(SettingError):
        check_k(rank_tokens(np.arange(3), [], "t"), 0)


@pytest.mark.parametrize("forced", [[10], [-1], [3, 99]])
def test_a_forced_id_outside_the_vocabulary_is_refused(forced: list[int]) -> None:
    """Bug: a negative id forces the last token instead; one beyond V surfaces as an IndexError."""
    with pytest.raises(SettingError, match="outside the vocabulary of 10"):
        rank_tokens(np.ones(10, dtype=np.int64), forced, "t")


@pytest.mark.parametrize("counted", [8, 12, 20])
def test_padded_vocabularies_rank_only_what_all_sides_have(counted: int) -> None:
    """Bug: counts longer or shorter than the models' vocabulary shift the ids, or rank ids that a model lacks."""
    counts = np.arange(counted, dtype=np.int64)  # the higher the id, the more frequent
    ranking = rank_tokens(counts, [2], "t", usable=12)
    assert sorted(ranking.ids.tolist()) == list(range(12))
    assert ranking.ids[0] == 2 and ranking.ids[1] == min(counted, 12) - 1
    assert ranking.observed == min(counted, 12) - 1  # all but id 0


def test_rankings_that_trim_differently_have_different_digests() -> None:
    """Bug: a digest over a set, or over too little, lets a cached head of another ranking be used."""
    one = Ranking(np.array([0, 1, 2]), 0, 3, "t")
    other = Ranking(np.array([0, 2, 1]), 0, 3, "t")
    assert one.digest != other.digest


def test_forced_tokens_are_control_and_every_end_token(tmp_path: Path) -> None:
    """Bug: an end-of-sequence id of the generation config is dropped, so a trimmed drafter can never end."""
    tokenizer = make_tiny_tokenizer(tmp_path / "t")
    forced = forced_token_ids(tokenizer, eos_ids=(250, 7, 250))
    assert forced.dtype == np.int64
    assert forced.tolist() == sorted({*tokenizer.control_ids, *tokenizer.eos_ids, 7, 250})


def test_a_ranking_among_some_tokens_keeps_its_parts() -> None:
    """Bug: forced, observed and banned tokens are counted that the drafter's own head does not have."""
    counts = np.array([0, 5, 9, 0, 7, 1, 0, 0])
    ranking = rank_tokens(counts, [3], "some", pinned=[6], banned=[4, 7])
    assert ranking.ids.tolist() == [3, 6, 2, 1, 5, 0, 4, 7]
    among = ranking_among(ranking, np.array([7, 6, 5, 2, 0]))
    assert among.ids.tolist() == [6, 2, 5, 0, 7]
    assert (among.forced, among.observed, among.banned, among.largest_k) == (1, 3, 1, 4)
    assert ranking_among(ranking, np.arange(8)) is ranking
    with pytest.raises(SettingError, match="no token of this ranking"):
        ranking_among(ranking, np.array([99]))
