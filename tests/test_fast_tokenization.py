"""Fast encoders: never other ids than the reference, whatever the text, and no lists where arrays do."""

import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tests.npm_tokenizers import npm_tokenizer_folder
from tests.tiny_tokenizer import CONTROL_TEXTS, TEXT, make_tiny_tokenizer
from vocabtrim_core import fast_tokenization
from vocabtrim_core.fast_tokenization import Encoders, FastEncoder, FlatIds, LibraryEncoder, awkward_texts, same_ids
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer

pytest.importorskip("fastokens")

PIECES = st.lists(st.one_of(st.sampled_from([*CONTROL_TEXTS, "<|im_", "end|>", "The cat", "\n", "  "]), st.text()))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def fresh():
    """No encoder is remembered from or for another test."""
    fast_tokenization._load_fast.cache_clear()
    yield
    fast_tokenization._load_fast.cache_clear()


@given(rows=st.lists(st.lists(st.integers(0, 300))), as_arrays=st.booleans(), cut=st.integers(0, 10))
def test_flat_ids_are_the_rows(rows: list[list[int]], as_arrays: bool, cut: int) -> None:
    """Bug: an empty text shifts all that follow; joined parts keep the offsets that they had alone."""
    given_rows = [np.array(row, dtype=np.uint16) for row in rows] if as_arrays else rows
    for flat in (FlatIds.of(given_rows), FlatIds.joined([FlatIds.of(given_rows[:cut]), FlatIds.of(given_rows[cut:])])):
        assert [flat.ids[a:b].tolist() for a, b in zip(flat.offsets, flat.offsets[1:], strict=False)] == rows
        assert flat.lengths.tolist() == [len(row) for row in rows]


@given(st.lists(PIECES.map("".join), max_size=8))
def test_both_forms_give_the_ids_of_the_reference(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Bug: literal control-token text becomes a control token in the fast form, or the template's own does not."""
    encoders = Encoders(tokenizer)
    assert isinstance(encoders.plain, FastEncoder) and isinstance(encoders.control, FastEncoder)
    for form, encoder in (("plain", encoders.plain), ("control", encoders.control)):
        assert same_ids(encoder, LibraryEncoder(tokenizer, form), texts)
    rows = tokenizer.encode_texts(texts)
    assert encoders.plain.encode(texts).ids.tolist() == [i for row in rows for i in row]


def test_control_tokens_in_each_form(tokenizer: Tokenizer) -> None:
    """Bug: both forms agree with their reference, but the forms are mixed up."""
    encoders = Encoders(tokenizer)
    text = ["<|im_start|>user\nHi<|im_end|>"]
    assert not set(encoders.plain.encode(text).ids.tolist()) & set(tokenizer.control_ids)
    assert [i for i in encoders.control.encode(text).ids.tolist() if i in tokenizer.control_ids] == [1, 2]


def test_what_the_fast_library_cannot_encode_the_reference_does(tmp_path: Path) -> None:
    """Bug: one text with a byte that the vocabulary lacks ends the count, or takes its whole batch out of it."""
    tokenizer = make_tiny_tokenizer(tmp_path / "t")
    path = tmp_path / "t" / "tokenizer.json"
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.train_from_iterator([TEXT], tokenizers.trainers.BpeTrainer(vocab_size=60, show_progress=False))
    bpe.save(str(path))
    tokenizer = load_tokenizer(tmp_path / "t")
    fast, reference = FastEncoder(tokenizer, "plain"), LibraryEncoder(tokenizer, "plain")
    texts = ["The cat", "a ü b", "", "the dog", "猫", "mat. \U000f1234", "The mat"]
    with pytest.raises(ValueError, match="no token in vocabulary"):
        fast._fast.encode_batch_flat(texts, split_special_tokens=True)
    assert same_ids(fast, reference, texts) and reference.encode(texts).lengths[0] > 0
    assert isinstance(Encoders(tokenizer).plain, FastEncoder)


@pytest.mark.usefixtures("fresh")
def test_a_fast_encoder_that_differs_is_not_used(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a new version of the fast library that splits digits otherwise changes everyone's counts in silence."""
    right = FastEncoder.encode

    def wrong(self: FastEncoder, texts: list[str]) -> FlatIds:
        return right(self, [text.replace("345", "543") for text in texts])

    monkeypatch.setattr(FastEncoder, "encode", wrong)
    assert isinstance(Encoders(tokenizer).plain, LibraryEncoder)


@pytest.mark.usefixtures("fresh")
def test_without_the_fast_library(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: an optional package is needed after all."""
    monkeypatch.setitem(__import__("sys").modules, "fastokens", None)
    fast_tokenization.fast_version.cache_clear()
    try:
        assert fast_tokenization.fast_version() == ""
        encoders = Encoders(tokenizer)
        assert isinstance(encoders.plain, LibraryEncoder) and not encoders.fast
    finally:
        fast_tokenization.fast_version.cache_clear()


def test_a_tokenizer_that_the_fast_library_does_not_know(tmp_path: Path) -> None:
    """Bug: a WordPiece tokenizer cannot be counted with at all."""
    make_tiny_tokenizer(tmp_path / "t")
    wordpiece = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "the": 1, "cat": 2}, unk_token="[UNK]"))
    wordpiece.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    wordpiece.save(str(tmp_path / "t" / "tokenizer.json"))
    encoders = Encoders(load_tokenizer(tmp_path / "t"))
    assert encoders.plain.encode(["the cat", "dog"]).ids.tolist()[:3] == [1, 2, 0]


def test_encoders_travel_to_other_processes(tokenizer: Tokenizer) -> None:
    """Bug: a worker gets nothing, or a choice of its own; a loaded encoder makes the job impossible to send."""
    encoders = Encoders(tokenizer)
    assert encoders.plain.encode(["The cat"]).ids.tolist()
    sent = pickle.loads(pickle.dumps(encoders))  # noqa: S301
    assert sent.fast == encoders.fast and sent.tokenizer == tokenizer
    assert same_ids(sent.plain, encoders.plain, ["The cat <|im_end|>"])
    assert not pickle.loads(pickle.dumps(Encoders(tokenizer, fast=False))).fast  # noqa: S301


@pytest.mark.parametrize("name", ["llama3_1", "qwen3"])
def test_real_tokenizers_are_fast(name: str) -> None:
    """Bug: the fast library refuses or misreads a tokenizer that the project promises speed for."""
    tokenizer = load_tokenizer(npm_tokenizer_folder(name))
    encoders = Encoders(tokenizer)
    assert isinstance(encoders.plain, FastEncoder) and isinstance(encoders.control, FastEncoder)
    literal = [*tokenizer.control_texts[:5], "Say <|eot_id|>: é 😀 世界\n\n\n  x"]
    assert not set(encoders.plain.encode(literal).ids.tolist()) & set(tokenizer.control_ids)


def test_awkward_texts_are_always_the_same(tokenizer: Tokenizer) -> None:
    """Bug: two processes of one count choose different encoders by luck."""
    assert awkward_texts(tokenizer) == awkward_texts(tokenizer)
    assert all(text.encode() or text == "" for text in awkward_texts(tokenizer))


@pytest.mark.usefixtures("fresh")
def test_while_the_fast_encoder_is_loaded_the_library_counts(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a count waits for the fast encoder, goes on without it, or loads it more than once."""
    gate, loads = threading.Event(), []
    load = fast_tokenization._load_fast

    def slowly(tokenizer: Tokenizer, form: fast_tokenization.Form) -> FastEncoder | None:
        gate.wait()
        loads.append(form)
        return load(tokenizer, form)

    monkeypatch.setattr(fast_tokenization, "_load_fast", slowly)
    encoders = Encoders(tokenizer)
    try:
        assert isinstance(encoders.at_hand("plain"), LibraryEncoder)
        assert isinstance(encoders.at_hand("plain"), LibraryEncoder)
    finally:
        gate.set()
    assert isinstance(encoders.plain, FastEncoder)
    encoders.wait()
    assert isinstance(encoders.at_hand("plain"), FastEncoder) and loads == ["plain"]
    assert isinstance(Encoders(tokenizer, fast=False).at_hand("plain"), LibraryEncoder)
