"""What tokens spell, for both kinds of vocabulary."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizer import make_tiny_byte_fallback, make_tiny_tokenizer

from vocabtrim_core.token_text import (
    byte_fallback_ids,
    byte_ids,
    is_byte_level,
    readable,
    readable_tokens,
    token_bytes,
)
from vocabtrim_core.tokenization import Tokenizer


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("t") / "byte-level")


@pytest.fixture(scope="module")
def byte_fallback(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_byte_fallback(tmp_path_factory.mktemp("t") / "byte-fallback")


@given(text=st.text())
def test_bytes_of_tokens_join_to_the_text(byte_level: Tokenizer, text: str) -> None:
    """Bug: a letter of the byte alphabet is taken for another byte, or for itself."""
    assert b"".join(token_bytes(byte_level, byte_level.encode_texts([text])[0])) == text.encode()


def test_bytes_of_byte_fallback(byte_fallback: Tokenizer) -> None:
    """Bug: `<0x41>` is taken for six characters, `▁` is not a space, or the letter Ġ for GPT-2's space."""
    assert not is_byte_level(byte_fallback)
    ids = [byte_fallback.id_of(piece) for piece in ("<0x41>", "▁cat", "Ġ", "<eos>")]
    assert token_bytes(byte_fallback, ids) == [b"A", b" cat", "Ġ".encode(), b"<eos>"]


def test_which_tokens_are_bytes(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    """Bug: byte-level BPE's letters are forced as if they were for falling back on, or a byte of UTF-8 is left out."""
    assert byte_fallback_ids(byte_level) == []
    assert byte_fallback_ids(byte_fallback) == byte_ids(byte_fallback) == list(range(1, 257))
    ranges = (range(0x80, 0x800), range(0x800, 0xD800, 64), range(0xE000, 0x10000, 64), range(0x10000, 0x110000, 4096))
    some_of_each_length = "".join(chr(code) for codes in ranges for code in codes)
    spelled = token_bytes(byte_level, byte_ids(byte_level))
    assert {bytes([byte]) for byte in some_of_each_length.encode()} == set(spelled) and len(spelled) == 115


@pytest.mark.parametrize(
    "data, shown",
    [
        (b" the", "·the"),
        (b"\r\n\n\t", "␍↵↵⇥"),
        (b" " * 12 + b"x", "·×12x"),
        (b" \xe4\xbd", "·⟨E4 BD⟩"),
        ("é\u200b\u202e".encode(), "é⟨U+200B⟩⟨U+202E⟩"),
        (b"\x1b[31m", "⟨U+001B⟩[31m"),
        (b"a\xffb", "a⟨FF⟩b"),
    ],
)
def test_readable(data: bytes, shown: str) -> None:
    """Bug: whitespace or a direction mark that nobody sees, or bytes that become U+FFFD and all look alike."""
    assert readable(data) == shown


@given(st.binary())
def test_readable_is_visible(data: bytes) -> None:
    """Bug: some invisible character, which may also steer a terminal, gets through (a plain space parts hex bytes)."""
    assert not any(unicodedata.category(char)[0] in "CZ" for char in readable(data).replace(" ", ""))


def test_readable_of_an_undefined_id(byte_level: Tokenizer) -> None:
    """Bug: an id that a padded model has and the tokenizer does not is shown as nothing."""
    assert readable_tokens(byte_level, [byte_level.vocab_size + 3]) == [f"⟨undefined {byte_level.vocab_size + 3}⟩"]
