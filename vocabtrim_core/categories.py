"""What kind of thing each token spells: a word's start, digits, a script, code, part of a character, ..."""

from __future__ import annotations

import sys
from enum import IntEnum

import numpy as np
import regex

from vocabtrim_core.token_text import byte_fallback_ids, token_bytes
from vocabtrim_core.tokenization import Tokenizer


class Category(IntEnum):
    """A kind of token; `label` is its name for people."""

    CONTROL = 0
    BYTES = 1
    WHITESPACE = 2
    DIGITS = 3
    PUNCTUATION = 4
    SYMBOLS = 5
    CODE = 6
    WORD_START = 7
    WORD_PART = 8
    HAN = 9
    KANA = 10
    HANGUL = 11
    CYRILLIC = 12
    GREEK = 13
    ARABIC = 14
    HEBREW = 15
    SOUTH_ASIAN = 16
    SOUTHEAST_ASIAN = 17
    OTHER_SCRIPT = 18
    UNDEFINED = 19

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = {
    Category.CONTROL: "control",
    Category.BYTES: "part of a character",
    Category.WHITESPACE: "whitespace",
    Category.DIGITS: "digits",
    Category.PUNCTUATION: "punctuation",
    Category.SYMBOLS: "symbols and emoji",
    Category.CODE: "code-like",
    Category.WORD_START: "word after a space",
    Category.WORD_PART: "word part, or word without a space",
    Category.HAN: "Chinese characters",
    Category.KANA: "Japanese kana",
    Category.HANGUL: "Korean",
    Category.CYRILLIC: "Cyrillic",
    Category.GREEK: "Greek",
    Category.ARABIC: "Arabic",
    Category.HEBREW: "Hebrew",
    Category.SOUTH_ASIAN: "South Asian scripts",
    Category.SOUTHEAST_ASIAN: "Southeast Asian scripts",
    Category.OTHER_SCRIPT: "other scripts and mixtures",
    Category.UNDEFINED: "undefined id",
}

# Classes of characters; the first pattern that matches a character decides.
_SPACE, _LOWER, _UPPER, _NUMBER, _MARK, _HYPHEN, _APOSTROPHE, _PAIR, _CODE, _PROSE, _SYMBOL, _STRAY, _OTHER = range(13)
_SCRIPTS = {
    Category.HAN: r"\p{Han}",
    Category.KANA: r"[\p{Hiragana}\p{Katakana}ー]",
    Category.HANGUL: r"\p{Hangul}",
    Category.CYRILLIC: r"\p{Cyrillic}",
    Category.GREEK: r"\p{Greek}",
    Category.ARABIC: r"[\p{Arabic}ـ]",
    Category.HEBREW: r"\p{Hebrew}",
    Category.SOUTH_ASIAN: r"[\p{Devanagari}\p{Bengali}\p{Gurmukhi}\p{Gujarati}\p{Oriya}\p{Tamil}\p{Telugu}\p{Kannada}"
    r"\p{Malayalam}\p{Sinhala}]",
    Category.SOUTHEAST_ASIAN: r"[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Javanese}]",
}
_FIRST_SCRIPT = _OTHER + 1
_CLASSES = {
    _STRAY: r"[\udc80-\udcff]",
    _SPACE: r"\s",
    _NUMBER: r"\p{N}",
    _UPPER: r"[\p{Latin}&&[\p{Lu}\p{Lt}]]",
    _LOWER: r"\p{Latin}",
    **{_FIRST_SCRIPT + i: rf"[{script}--[\p{{P}}\p{{M}}]]" for i, script in enumerate(_SCRIPTS.values())},
    _MARK: r"[\p{M}\p{Cf}]",
    _HYPHEN: r"[-‐]",
    _APOSTROPHE: r"['’]",
    # Code where two of them meet: "();", "::", "//".
    _PAIR: r"""[()\[\];:/*&+"]""",
    _CODE: r"[{}<>=\\|_\^~`$@\#]",
    _PROSE: r"\p{P}",
    _SYMBOL: r"\p{S}",
    _OTHER: r".",
}


def token_categories(tokenizer: Tokenizer) -> np.ndarray:
    """int8[V]: the `Category` of every token id.

    A token is judged by the set of classes its characters are of. Letters of one script are of that script. Latin
    letters are a word, or code-like where they stand with digits or with punctuation other than `'` and `-` (`utf8`,
    `.get`, `_name`), or where a capital follows a small letter (`camelCase`).
    """
    spelled = token_bytes(tokenizer, range(tokenizer.vocab_size))
    # A byte that is not UTF-8 becomes one character, U+DC00 + byte.
    texts = [data.decode("utf-8", "surrogateescape") for data in spelled]
    categories = np.full(tokenizer.vocab_size, Category.UNDEFINED, dtype=np.int8)
    some = np.array([bool(text) for text in texts])
    categories[some] = _categories([text for text in texts if text])
    categories[byte_fallback_ids(tokenizer)] = Category.BYTES
    categories[list(tokenizer.control_ids)] = Category.CONTROL
    return categories


def _categories(texts: list[str]) -> np.ndarray:
    """int8[n]: the category of each text; none is empty."""
    classes = _character_classes("".join(texts))  # [characters]
    ends = np.cumsum([len(text) for text in texts])
    starts = ends - [len(text) for text in texts]
    bits = np.bitwise_or.reduceat(np.left_shift(1, classes, dtype=np.int32), starts)  # [n]

    follows = np.zeros(len(classes), dtype=bool)  # [characters]: whether the one before is in the same text
    follows[1:] = True
    follows[starts] = False
    before = np.roll(classes, 1)
    hump = (before == _LOWER) & (classes == _UPPER)
    paired = np.isin(classes, (_PAIR, _APOSTROPHE)) & np.isin(before, (_PAIR, _APOSTROPHE))
    paired &= (classes == _PAIR) | (before == _PAIR)
    is_code = np.bitwise_or.reduceat((hump | paired) & follows, starts)

    def has(*kinds: int) -> np.ndarray:
        return bits & sum(1 << kind for kind in kinds) != 0

    def only(*kinds: int) -> np.ndarray:
        return bits & ~sum(1 << kind for kind in kinds) == 0

    scripts = {category: _FIRST_SCRIPT + i for i, category in enumerate(_SCRIPTS)}
    latin, punctuation = has(_LOWER, _UPPER), (_HYPHEN, _APOSTROPHE, _PAIR, _PROSE)
    cases = {
        Category.BYTES: has(_STRAY),
        Category.WHITESPACE: only(_SPACE),
        Category.DIGITS: only(_SPACE, _NUMBER),
        Category.CODE: is_code
        | has(_CODE) & only(_SPACE, _LOWER, _UPPER, _NUMBER, _SYMBOL, _CODE, *punctuation)
        | latin & has(_NUMBER, _PAIR, _PROSE, _SYMBOL),
        Category.WORD_START: latin
        & only(_SPACE, _LOWER, _UPPER, _MARK, _HYPHEN, _APOSTROPHE)
        & (classes[starts] == _SPACE),
        Category.WORD_PART: latin & only(_LOWER, _UPPER, _MARK, _HYPHEN, _APOSTROPHE),
        Category.PUNCTUATION: only(_SPACE, *punctuation),
        Category.SYMBOLS: only(_SPACE, _SYMBOL, _MARK, *punctuation),
        **{category: only(_SPACE, _MARK, *punctuation, script) for category, script in scripts.items()},
    }
    # Japanese mixes its kana with Chinese characters.
    kana, han = scripts[Category.KANA], scripts[Category.HAN]
    cases[Category.KANA] |= has(kana) & only(_SPACE, _MARK, *punctuation, kana, han)
    return np.select(list(cases.values()), [np.int8(case) for case in cases], np.int8(Category.OTHER_SCRIPT))


def _character_classes(text: str) -> np.ndarray:
    """int8[characters]: the class of every character."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    classes = np.zeros(sys.maxunicode + 1, dtype=np.int8)
    classes[codes] = 1
    distinct = np.flatnonzero(classes).astype("<u4")
    characters = distinct.tobytes().decode("utf-32-le", "surrogatepass")
    for kind, pattern in reversed(_CLASSES.items()):
        for found in regex.finditer(f"(?:{pattern})+", characters, regex.VERSION1 | regex.DOTALL):
            classes[distinct[found.start() : found.end()]] = kind
    return classes[codes]
