from __future__ import annotations

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizer import make_tiny_tokenizer

from pages.components.tokens import decoded_chips, grouped, list_chips, marks_of, token_text
from vocabtrim_core.decoding.engine import Cycle, CycleTimes
from vocabtrim_core.tokenization import Tokenizer

TIMES = CycleTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tokens") / "tokenizer")


def cycle(drafted: list[int], accepted: int, own: int | None, what: str | None, outside: bool = False) -> Cycle:
    emitted = (*drafted[:accepted], *([] if own is None else [own]))
    probs = tuple(0.5 for _ in drafted)
    parents, path = tuple(range(-1, len(drafted) - 1)), tuple(range(accepted))
    return Cycle(tuple(drafted), parents, probs, probs, path, emitted, what, 0.5, outside, None, TIMES)  # type: ignore[arg-type]


def chip_texts(body: str) -> list[tuple[str, str]]:
    """(fate, visible text) of each chip."""
    chips = re.findall(r'<span class="vt vt-(\w+)" title="[^"]*">(.*?)</span>(?=<span class="vt |<br>|</div>)', body)
    return [(fate, html.unescape(re.sub(r"<[^>]+>", "", text))) for fate, text in chips]


@given(text=st.text(min_size=1, max_size=40))
def test_groups_spell_the_text(tokenizer: Tokenizer, text: str) -> None:
    """Catches characters that are lost, doubled or broken where they span tokens."""
    (ids,) = tokenizer.encode_texts([text])
    groups = grouped(tokenizer, ids, tokenizer.encode_texts(["a"])[0])
    assert sum(size for size, _ in groups) == len(ids)
    if "\ufffd" not in text:
        assert "".join(part for _, part in groups) == text


@pytest.mark.parametrize("character", ["猫", "🐈", "👩🏽‍🚀", "🇫🇷", "é"])
def test_a_character_is_one_chip(tokenizer: Tokenizer, character: str) -> None:
    """Catches emoji, CJK, flags and accents shown as broken halves (U+FFFD)."""
    (ids,) = tokenizer.encode_texts([character])
    assert len(ids) > 1
    body = decoded_chips([cycle([], 0, one, "vanilla") for one in ids], tokenizer, [])
    assert chip_texts(body) == [("vanilla", character)]
    assert all(f"(id {one})" in body for one in ids)


def test_unfinished_character_shows_bytes(tokenizer: Tokenizer) -> None:
    """Catches a replacement character while a character is still being streamed."""
    ids = tokenizer.encode_texts(["猫"])[0][:-1]
    body = decoded_chips([cycle([], 0, one, "vanilla") for one in ids], tokenizer, [])
    assert "\ufffd" not in body and "⟨E7⟩" in body


def test_reading_order_and_marks(tokenizer: Tokenizer) -> None:
    """Catches a rejected token shown after its correction, or a token with the wrong mark."""
    a, b, c, d, e = (tokenizer.encode_texts([letter])[0][0] for letter in "abcde")
    cycles = [
        cycle([a, b, c], 1, d, "correction"),
        cycle([a, b], 0, e, "correction", outside=True),
        cycle([a], 1, b, "bonus"),
        cycle([], 0, c, "vanilla"),
    ]
    expected = [
        *[("accepted", "a"), ("rejected", "b"), ("discarded", "c"), ("correction", "d")],
        *[("rejected", "a"), ("discarded", "b"), ("outside", "e")],
        *[("accepted", "a"), ("bonus", "b"), ("vanilla", "c")],
    ]
    assert chip_texts(decoded_chips(cycles, tokenizer, [])) == expected
    notes = [mark.note for mark in marks_of(cycles, tokenizer)]
    assert "“d”" in notes[1] and "“b”" in notes[3]


def test_end_inside_a_draft(tokenizer: Tokenizer) -> None:
    """Catches an invented correction where the text ended inside the draft."""
    a, b = (tokenizer.encode_texts([letter])[0][0] for letter in "ab")
    assert chip_texts(decoded_chips([cycle([a, b], 2, None, None)], tokenizer, [])) == [
        ("accepted", "a"),
        ("accepted", "b"),
    ]


def test_rejected_token_inside_a_character(tokenizer: Tokenizer) -> None:
    """Catches a character torn apart by a rejected draft in the middle of its bytes."""
    first, *others = tokenizer.encode_texts(["猫"])[0]
    a = tokenizer.encode_texts(["a"])[0][0]
    cycles = [cycle([], 0, first, "vanilla"), *(cycle([a], 0, one, "correction") for one in others)]
    assert chip_texts(decoded_chips(cycles, tokenizer, []))[-1] == ("correction", "猫")


def test_markup_stays_text(tokenizer: Tokenizer) -> None:
    """Catches model text that reaches the page as HTML, in the chip or in its tooltip."""
    ids = tokenizer.encode_texts(['<script>alert("1")</script>'])[0]
    for body in (
        decoded_chips([cycle([], 0, one, "vanilla") for one in ids], tokenizer, []),
        decoded_chips([cycle(ids, len(ids), None, None)], tokenizer, []),
        list_chips(tokenizer, ids, ['"><script>'] * len(ids)),
    ):
        assert "<script" not in body and "&lt;" in body
        assert all(set(tag) <= set("divspanbr/") for tag in re.findall(r"<(/?\w+)", body))


def test_whitespace_is_visible(tokenizer: Tokenizer) -> None:
    """Catches empty chips for spaces and line breaks."""
    (ids,) = tokenizer.encode_texts([" \n\t"])
    shown = "".join(text for _, text in chip_texts(decoded_chips([cycle(ids, len(ids), None, None)], tokenizer, [])))
    assert shown == "·↵⇥"


def test_every_token_can_be_shown(tokenizer: Tokenizer) -> None:
    """Catches ids that a list of tokens cannot show: bytes, control tokens, undefined ids."""
    for token in range(tokenizer.vocab_size + 2):
        assert token_text(tokenizer, token)
        assert "\ufffd" not in token_text(tokenizer, token)
