"""Counts: merged, saved, loaded and told apart without losing anything."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.counting.helpers import jsonl, same
from tests.tiny_tokenizer import make_tiny_tokenizer
from vocabtrim_core.corpora import BadRecord, CorpusFile, LeftOut
from vocabtrim_core.counting import HELD_OUT_GROUPS, MAX_BAD_RECORDS, CountedFile, TokenCounts, count_files, counts
from vocabtrim_core.counting.counts import MAX_LEFT_OUT, first_left_out
from vocabtrim_core.errors import CorpusError, SettingError, TokenizerError
from vocabtrim_core.tokenization import Tokenizer

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


@st.composite
def token_counts(draw) -> TokenCounts:
    name = st.text(st.characters(codec="utf-8"), max_size=5)
    count = st.integers(0, 10**9)
    histogram = st.lists(count, min_size=4, max_size=4).map(lambda values: np.array(values, dtype=np.int64))
    groups = np.zeros((HELD_OUT_GROUPS, 4), dtype=np.int64)
    groups[draw(st.lists(st.integers(0, HELD_OUT_GROUPS - 1), max_size=3))] = draw(histogram)
    bad = draw(st.lists(st.builds(BadRecord, name, count, name), max_size=25))
    left_out = draw(st.lists(st.builds(LeftOut, name, name, count, st.booleans()), max_size=4))
    return TokenCounts(
        calibration=draw(histogram),
        held_out_groups=groups,
        calibration_documents=draw(count),
        held_out_documents=draw(count),
        files=tuple(sorted(draw(st.lists(st.builds(CountedFile, name, name, count, count), max_size=3)))),
        left_out=first_left_out(left_out),
        left_out_count=len(left_out),
        tokenizer_name=draw(name),
        tokenizer_fingerprint="f",
        vocab_size=4,
        holdout=0.1,
        bad_records=tuple(sorted(bad)[:MAX_BAD_RECORDS]),
        bad_record_count=len(bad),
    )


def small_counts() -> TokenCounts:
    return TokenCounts(np.arange(4), np.eye(HELD_OUT_GROUPS, 4, dtype=np.int64), 1, 1, (), "t", "f", 4, 0.1)


@quick
@given(token_counts(), token_counts(), token_counts())
def test_merge_is_commutative_and_associative(a: TokenCounts, b: TokenCounts, c: TokenCounts) -> None:
    """Bug: a merged corpus, or its cache key, depends on the order in which files were added."""
    assert same(a.merge(b), b.merge(a))
    assert same(a.merge(b).merge(c), a.merge(b.merge(c)))
    assert a.merge(b).tokens == a.tokens + b.tokens
    assert a.merge(b).documents == a.documents + b.documents


@quick
@given(token_counts())
def test_save_and_load_change_nothing(tmp_path, counts: TokenCounts) -> None:
    """Bug: a field, a type or a large count is lost on the way through the file."""
    counts.save(tmp_path / "counts.npz")
    loaded = TokenCounts.load(tmp_path / "counts.npz")
    assert same(loaded, counts)
    assert loaded.files == counts.files and loaded.bad_records == counts.bad_records
    assert [path.name for path in tmp_path.iterdir()] == ["counts.npz"]


def test_merge_refuses_what_does_not_belong_together(tokenizer: Tokenizer, tmp_path) -> None:
    """Bug: ids of two tokenizers are added up; a document is held out in one part and not in the other."""
    counts = count_files([jsonl("a.jsonl", ["x"])], tokenizer)
    other = make_tiny_tokenizer(tmp_path / "other", text="Quite another text, with other words in it. " * 3)
    with pytest.raises(TokenizerError, match="two different tokenizers"):
        counts.merge(count_files([jsonl("a.jsonl", ["x"])], other))
    with pytest.raises(SettingError, match="different held-out shares"):
        counts.merge(count_files([jsonl("a.jsonl", ["x"])], tokenizer, holdout=0.2))


def test_digest_tells_counts_apart(tokenizer: Tokenizer) -> None:
    """Bug: a cached result is reused for another corpus, tokenizer or split."""
    texts = [f"text {i}" for i in range(30)]
    counts = count_files([jsonl("a.jsonl", texts)], tokenizer, holdout=0.5)
    others = [
        count_files([jsonl("a.jsonl", [*texts[1:], "six"])], tokenizer, holdout=0.5),
        count_files([jsonl("a.jsonl", texts)], tokenizer, holdout=0.2),
        replace(counts, tokenizer_fingerprint="another"),
        replace(counts, calibration=counts.calibration[::-1]),
        replace(counts, held_out_groups=counts.held_out_groups[::-1]),
    ]
    assert len({each.digest for each in [counts, *others]}) == 6


@pytest.fixture(scope="module")
def saved(tokenizer: Tokenizer) -> bytes:
    return count_files([jsonl("a.jsonl", ["x", "y"])], tokenizer).to_bytes()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_counts_files(saved: bytes, data) -> None:
    """Bug: a damaged or foreign file raises whatever zip, zlib, numpy or JSON raise, or loads as nonsense."""
    changed = bytearray(saved)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(saved) - 1))] = data.draw(st.integers(0, 255))
    changed = changed[: data.draw(st.sampled_from([len(saved), len(saved) // 2, 3, 0]))]
    with contextlib.suppress(CorpusError):
        counts = TokenCounts.from_bytes(bytes(changed))
        assert counts.calibration.shape == counts.held_out.shape == (counts.vocab_size,)


def rewritten(counts: TokenCounts, **changes) -> bytes:
    return replace(counts, **changes).to_bytes()


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 5},
        {"vocab_size": "4"},
        {"holdout": "0.1"},
        {"tokenizer_name": 5},
        {"calibration_documents": 1.5},
        {"files": (CountedFile("a", 5, 1, 1),)},
        {"bad_records": (BadRecord("a", "1", "x"),)},
        {"calibration": np.array([1, 2, 3, -4])},
        {"calibration": np.array([1.0, 2, 3, 4])},
        {"calibration": np.array([[1, 2, 3, 4]])},
    ],
    ids=str,
)
def test_counts_files_with_wrong_content(changes: dict) -> None:
    """Bug: a file made by hand passes with a shape or type that fails much later, on a page."""
    good = small_counts()
    assert same(TokenCounts.from_bytes(good.to_bytes()), good)
    with pytest.raises(CorpusError, match="not a counts file"):
        TokenCounts.from_bytes(rewritten(good, **changes))


def test_other_archives_are_not_counts(tmp_path, monkeypatch) -> None:
    """Bug: pickles are loaded from an npz; a small file that unpacks to gigabytes is unpacked."""
    np.savez(tmp_path / "other.npz", calibration=np.zeros(4, dtype=np.int64))
    np.savez(tmp_path / "pickle.npz", calibration=np.array([{}]), provenance=np.array([{}]))
    for name in ("other.npz", "pickle.npz"):
        with pytest.raises(CorpusError, match=f"{name} is not a counts file"):
            TokenCounts.load(tmp_path / name)
    good = small_counts()
    good.save(tmp_path / "good.npz")
    monkeypatch.setattr(counts, "MAX_COUNTS_BYTES", 500)
    with pytest.raises(CorpusError):
        TokenCounts.load(tmp_path / "good.npz")


def test_save_and_load_paths(tmp_path) -> None:
    """Bug: a traceback for a folder that does not exist; half a file left behind when saving fails."""
    good = small_counts()
    with pytest.raises(CorpusError, match="cannot be written"):
        good.save(tmp_path / "none" / "counts.npz")
    with pytest.raises(CorpusError, match="does not exist"):
        TokenCounts.load(tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(CorpusError, match="cannot be written"):
        good.save(tmp_path / "folder.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.npz"]


def test_what_was_left_out_is_kept(tokenizer: Tokenizer) -> None:
    """Bug: counts that were saved, merged or loaded no longer say which files are missing from them."""
    whole = count_files([CorpusFile("a.txt", b"The cat")], tokenizer)
    minor = [LeftOut(f"{number:03}.txt", "empty.") for number in range(MAX_LEFT_OUT)]
    one = replace(whole, left_out=first_left_out(minor), left_out_count=MAX_LEFT_OUT)
    other = replace(whole, left_out=(LeftOut("z.txt", "changed.", 5, True),), left_out_count=1)
    merged = one.merge(other)
    assert merged.left_out == other.merge(one).left_out == (*other.left_out, *minor[:-1])
    assert merged.left_out_count == MAX_LEFT_OUT + 1
    assert TokenCounts.from_bytes(merged.to_bytes()).left_out == merged.left_out
    assert merged.left_out[0].sentence == "changed. In the counts: 5 of its documents were counted."
