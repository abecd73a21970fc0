"""Lists and counts of other programs."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizer import make_tiny_tokenizer

from vocabtrim_core import importing
from vocabtrim_core.corpora import CorpusFile
from vocabtrim_core.counting import TokenCounts, count_files
from vocabtrim_core.errors import CorpusError, TokenizerError, VocabTrimError
from vocabtrim_core.importing import import_tokens
from vocabtrim_core.tokenization import Tokenizer
from vocabtrim_core.vocabulary import Ranking


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("t") / "t")


def pt(content: object, **options) -> CorpusFile:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return CorpusFile("freq.pt", buffer.getvalue())


def as_json(content: object) -> CorpusFile:
    return CorpusFile("freq.json", json.dumps(content).encode())


LISTS = [
    pt([50, 7, 90]),
    pt([50, 7, 90], _use_new_zipfile_serialization=False),
    pt([np.int64(50), np.int64(7), np.int64(90)]),
    pt([np.int32(50), np.uint16(7), np.int64(90)]),
    pt(torch.tensor([50, 7, 90])),
    pt((50, 7, 90)),
    as_json([50, 7, 90]),
]


@pytest.mark.parametrize("file", LISTS)
def test_a_list_becomes_a_ranking(file: CorpusFile, tokenizer: Tokenizer) -> None:
    """Bug: the list's order is lost, control tokens are not added, or numpy's integers cannot be read."""
    imported = import_tokens(file, tokenizer, eos_ids=[12])
    ranking = imported.content
    assert isinstance(ranking, Ranking) and ranking.name == "freq"
    forced = sorted({*tokenizer.control_ids, 12})
    assert ranking.ids[: len(forced) + 3].tolist() == [*forced, 50, 7, 90]
    assert (ranking.forced, ranking.observed) == (len(forced), len(forced) + 3)
    assert sorted(ranking.ids.tolist()) == list(range(tokenizer.vocab_size))
    assert any("4 tokens that must always be kept" in note for note in imported.notes)


COUNTS = [
    pt({50: 3, 7: 0, 90: 5}),
    pt(Counter({50: 3, 90: 5})),
    pt({np.int64(50): np.int64(3), np.int64(90): np.int64(5)}),
    as_json({"50": 3, "90": 5}),
]


@pytest.mark.parametrize("file", COUNTS)
def test_counts(file: CorpusFile, tokenizer: Tokenizer) -> None:
    """Bug: keys that are strings in JSON, or numpy's in a .pt file, miss their token."""
    counts = import_tokens(file, tokenizer).content
    assert isinstance(counts, TokenCounts)
    assert {int(i): int(counts.calibration[i]) for i in np.flatnonzero(counts.calibration)} == {50: 3, 90: 5}
    assert not counts.held_out.any() and counts.tokenizer_fingerprint == tokenizer.fingerprint
    assert TokenCounts.from_bytes(counts.to_bytes()).digest == counts.digest


def test_counts_by_token(tokenizer: Tokenizer) -> None:
    """Bug: a token that is a digit is taken for an id; a token as text is not found; the same token twice is lost."""
    imported = import_tokens(as_json({"Ġcat": 4, " cat": 2, "7": 1, "Ġnowhere-in-here": 0}), tokenizer)
    assert isinstance(imported.content, TokenCounts)
    assert imported.content.calibration[tokenizer.id_of("Ġcat")] == 6
    assert imported.content.calibration[tokenizer.id_of("7")] == 1 and imported.content.tokens == 7
    assert any("added up" in note for note in imported.notes)
    assert any("1 token that the tokenizer does not have" in note for note in imported.notes)
    with pytest.raises(TokenizerError, match="nowhere-in-here"):
        import_tokens(as_json({"Ġcat": 4, "Ġnowhere-in-here": 1}), tokenizer)


def test_repeated_keys_of_json_add_up(tokenizer: Tokenizer) -> None:
    """Bug: of two equal keys the parser silently keeps the last."""
    imported = import_tokens(CorpusFile("f.json", b'{"50": 3, "50": 4}'), tokenizer)
    assert isinstance(imported.content, TokenCounts) and imported.content.calibration[50] == 7


def test_duplicates_are_removed_and_said(tokenizer: Tokenizer) -> None:
    """Bug: a token twice in the list takes two places of the draft vocabulary."""
    imported = import_tokens(as_json([50, 7, 50, 50, 90]), tokenizer)
    assert isinstance(imported.content, Ranking)
    assert imported.content.ids[imported.content.forced :][:3].tolist() == [50, 7, 90]
    assert any(note.startswith("2 tokens listed before") for note in imported.notes)


def test_a_sorted_list_says_that_it_has_no_order(tokenizer: Tokenizer) -> None:
    """Bug: a list of kept ids passes for a ranking, and a smaller k keeps the smaller ids without a word."""
    assert any("ascending order" in note for note in import_tokens(as_json([7, 50, 90]), tokenizer).notes)
    assert not any("ascending order" in note for note in import_tokens(as_json([50, 7, 90]), tokenizer).notes)


def test_a_padded_list_is_cut_to_what_all_sides_have(tokenizer: Tokenizer) -> None:
    """Bug: an id that the drafter does not have is ranked."""
    ranking = import_tokens(as_json([50, tokenizer.vocab_size - 1]), tokenizer, usable=100).content
    assert isinstance(ranking, Ranking) and ranking.vocab_size == 100 and ranking.observed == ranking.forced + 1


def test_own_counts_come_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Bug: our own file is not among the formats, or is taken for another tokenizer's."""
    counts = count_files([CorpusFile("a.txt", b"The cat sat on the mat.")], tokenizer)
    content = import_tokens(CorpusFile("c.npz", counts.to_bytes()), tokenizer).content
    assert isinstance(content, TokenCounts) and content.digest == counts.digest
    other = make_tiny_tokenizer(tmp_path / "other", "Something else, something else.")
    with pytest.raises(TokenizerError, match="another tokenizer"):
        import_tokens(CorpusFile("c.npz", counts.to_bytes()), other)


def npy(content: np.ndarray, name: str = "map.npy") -> CorpusFile:
    buffer = io.BytesIO()
    np.save(buffer, content)
    return CorpusFile(name, buffer.getvalue())


def draft_vocabulary(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, their offsets and their mask, as EAGLE-3's tools write them."""
    ids = np.array([5, 6, 7, 30, 31, 50, 51, 52, 90, 91, 92, 93, 200, 201, tokenizer.vocab_size - 1])
    mask = np.zeros(tokenizer.vocab_size, dtype=bool)
    mask[ids] = True
    return ids, ids - np.arange(len(ids)), mask


FORMS = {
    "vocab_mapping.pt": lambda ids, d2t, t2d: pt({"d2t": torch.from_numpy(d2t), "t2d": torch.from_numpy(t2d)}),
    "with ids in d2t": lambda ids, d2t, t2d: pt({"d2t": torch.from_numpy(ids), "t2d": torch.from_numpy(t2d)}),
    "d2t in a dict": lambda ids, d2t, t2d: pt({"d2t": torch.from_numpy(d2t).int()}),
    "t2d in a dict": lambda ids, d2t, t2d: pt({"t2d": torch.from_numpy(t2d).int()}),
    "d2t alone": lambda ids, d2t, t2d: pt(torch.from_numpy(d2t)),
    "d2t.npy": lambda ids, d2t, t2d: npy(d2t, "d2t.npy"),
    "d2t.npy, renamed": lambda ids, d2t, t2d: npy(d2t),
    "t2d.npy": lambda ids, d2t, t2d: npy(t2d),
    "t2d.npy of numbers": lambda ids, d2t, t2d: npy(t2d.astype(np.uint8), "t2d.npy"),
    "ids.npy": lambda ids, d2t, t2d: npy(ids.astype(np.int32)),
    "ids as a tensor": lambda ids, d2t, t2d: pt(torch.from_numpy(ids)),
    "ids as a list": lambda ids, d2t, t2d: pt(ids.tolist()),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_draft_vocabulary_in_every_form_is_its_ids(form: str, tokenizer: Tokenizer) -> None:
    """Bug: offsets, or a mask's zeros and ones, pass for ids."""
    ids, d2t, t2d = draft_vocabulary(tokenizer)
    imported = import_tokens(FORMS[form](ids, d2t, t2d), tokenizer)
    ranking = imported.content
    assert isinstance(ranking, Ranking)
    kept = [token for token in ids.tolist() if token not in tokenizer.control_ids]
    assert ranking.ids[ranking.forced : ranking.observed].tolist() == kept
    said = any("offsets of a d2t" in note for note in imported.notes)
    assert said == (form in ("d2t in a dict", "d2t alone", "d2t.npy", "d2t.npy, renamed"))


def test_offsets_in_the_order_of_frequency_keep_it(tokenizer: Tokenizer) -> None:
    """Bug: ModelOpt's d2t, whose offsets may be negative, is refused or sorted."""
    ids, _, t2d = draft_vocabulary(tokenizer)
    ids = ids[::-1].copy()
    d2t = ids - np.arange(len(ids))
    for file in (
        pt(torch.from_numpy(d2t)),
        as_json(d2t.tolist()),
        pt({"d2t": torch.from_numpy(d2t), "t2d": torch.from_numpy(t2d)}),
    ):
        ranking = import_tokens(file, tokenizer).content
        assert isinstance(ranking, Ranking) and ranking.ids[ranking.forced : ranking.observed].tolist() == ids.tolist()


def test_a_real_list_is_never_read_as_the_other(tokenizer: Tokenizer) -> None:
    """Bug: a long ascending array of ids is refused as doubtful, or read as offsets."""
    ids = np.flatnonzero(np.random.default_rng(0).random(tokenizer.vocab_size) < 0.5)
    for name, values in (("map.npy", ids), ("map.npy", ids - np.arange(len(ids)))):
        ranking = import_tokens(npy(values, name), tokenizer).content
        assert isinstance(ranking, Ranking)
        assert set(ranking.ids[: ranking.observed].tolist()) == {*ids.tolist(), *tokenizer.control_ids}


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def bomb() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\0" * 5_000_000)
    return buffer.getvalue()


REFUSED = [
    (as_json([50, 300_000]), "300,000"),
    (as_json([-1]), "-1"),
    (as_json({"300000": 1}), "300,000"),
    (as_json([1.5]), "whole number"),
    (as_json([True]), "whole number"),
    (as_json([None]), "whole number"),
    (as_json({"50": -1}), "negative"),
    (as_json({"50": 10**30}), "whole number"),
    (as_json({"50": 0}), "counts nothing"),
    (as_json([]), "empty"),
    (as_json({}), "empty"),
    (as_json("50"), "neither"),
    (CorpusFile("a.json", b"\xff{"), "not valid JSON"),
    (CorpusFile("a.json", b"[" * 100_000), "not valid JSON"),
    (pt(torch.tensor([[1, 2]])), "neither"),
    (pt(torch.tensor([1.5])), "whole number"),
    (pt({"weight": torch.zeros(2)}), "whole number"),
    (pt(Evil()), "torch.save"),
    (CorpusFile("a.pt", b"not a pickle"), "torch.save"),
    (CorpusFile("a.npz", b"not a zip"), "counts file"),
    (CorpusFile("a.txt", b"50"), "not a .pt"),
    (pt(torch.tensor([7, 50, 90])), "could be token ids, or the offsets"),
    (npy(np.array([7, 50, 90]), "d2t.npy"), "could be token ids, or the offsets"),
    (as_json([7, 7, 50, 50]), "could be token ids, or the offsets"),
    (npy(np.zeros(40, dtype=np.int64)), "all zeros"),
    (npy(np.array([5, 5, 9, 290])), "another tokenizer"),
    (npy(np.array([5, 5, 3]), "d2t.npy"), "neither token ids"),
    (npy(np.array([5.0, 7.0])), "whole number"),
    (npy(np.array([[5, 7]])), "one row"),
    (pt({"d2t": torch.tensor([5, 5]), "t2d": torch.ones(9, dtype=torch.bool)}), "do not say the same"),
    (pt({"d2t": torch.zeros(2, 2)}), "one row"),
    (pt({"d2t": torch.tensor([0.0, 300.0]).bfloat16()}), "whole number"),
    (pt(torch.zeros(1, dtype=torch.int64).expand(10**8)), "more than any vocabulary"),
    (CorpusFile("a.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<i8'}"), "numpy.save"),
    (CorpusFile("a.npy", npy(np.arange(9)).data[:-8]), "one row"),
    (npy(np.array([], dtype=np.int64)), "empty"),
]


@pytest.mark.parametrize("file, words", REFUSED)
def test_refused(file: CorpusFile, words: str, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: ids out of range index from the end, code in a pickle runs, or damage ends in a traceback."""
    with pytest.raises(VocabTrimError, match=words) as caught:
        import_tokens(file, tokenizer)
    assert file.name in str(caught.value)
    assert "executed" not in capsys.readouterr().out


def test_a_file_that_unpacks_to_too_much(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a small upload that exhausts the memory."""
    monkeypatch.setattr(importing, "MAX_BYTES", 1_000_000)
    with pytest.raises(CorpusError):
        import_tokens(CorpusFile("a.pt", bomb()), tokenizer)


@given(content=st.binary(max_size=200), suffix=st.sampled_from([".pt", ".npy", ".json", ".npz"]))
def test_any_bytes_give_a_result_or_a_sentence(tokenizer: Tokenizer, content: bytes, suffix: str) -> None:
    """Bug: some damage raises an error of the library's own."""
    with contextlib.suppress(VocabTrimError):
        import_tokens(CorpusFile(f"f{suffix}", content), tokenizer)
