"""Texts to token ids by the million: arrays of ids, and the fastest library that gives the same ones.

`fastokens` encodes tens of times as fast as `tokenizers`, but it is a second implementation, and optional. It is used
for a tokenizer only where both give the same ids on a sample; what it cannot encode, `tokenizers` does.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import metadata
from typing import Literal, Protocol

import numpy as np
import tokenizers

from vocabtrim_core.tokenization import Tokenizer

LIBRARY = "tokenizers"
FAST = "fastokens"

Form = Literal["plain", "control"]


@dataclass(frozen=True)
class FlatIds:
    """Token ids of several texts, one after the other: text i has `ids[offsets[i]:offsets[i + 1]]`.

    `ids` is a uint32 or int64 array [tokens], `offsets` int64[texts + 1].
    """

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int] | np.ndarray]) -> FlatIds:
        """The same of lists or integer arrays."""
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
        if rows and all(isinstance(row, np.ndarray) for row in rows):
            return cls(np.concatenate(rows, dtype=np.int64), offsets)
        return cls(np.fromiter(itertools.chain.from_iterable(rows), np.int64, count=int(offsets[-1])), offsets)

    @classmethod
    def joined(cls, parts: Sequence[FlatIds]) -> FlatIds:
        """The texts of all parts, in order."""
        starts = np.cumsum([0, *(len(part.ids) for part in parts)])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
        return cls(np.concatenate([part.ids for part in parts]), np.concatenate([*offsets, starts[-1:]]))

    @property
    def lengths(self) -> np.ndarray:
        """int64[texts]: the number of tokens of each."""
        return np.diff(self.offsets)


class Encoder(Protocol):
    """Encodes many texts at once. Several threads may use it together."""

    name: str
    batch_characters: int
    """A good size of a batch: enough to keep the encoder busy, and for progress every fraction of a second."""

    def encode(self, texts: list[str]) -> FlatIds:
        """The ids of each text; nothing is added at either end."""
        ...


class LibraryEncoder:
    """One form of a tokenizer, encoded by the `tokenizers` library: the reference."""

    name = LIBRARY
    batch_characters = 500_000

    def __init__(self, tokenizer: Tokenizer, form: Form) -> None:
        self._tokenizer = tokenizer
        self._form = form

    def encode(self, texts: list[str]) -> FlatIds:
        backend: tokenizers.Tokenizer = getattr(self._tokenizer, self._form)
        return FlatIds.of([row.ids for row in backend.encode_batch_fast(texts, add_special_tokens=False)])


class FastEncoder:
    """The same by `fastokens`. Raises ValueError for a kind of tokenizer that it does not know."""

    name = FAST
    batch_characters = 1_000_000

    def __init__(self, tokenizer: Tokenizer, form: Form) -> None:
        # Counting has a thread a core already. The library's own threads would compete with them, and each thread
        # fills a cache of its own: together they took half as much processor time again.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        from fastokens import Tokenizer as FastTokenizer

        self._reference = LibraryEncoder(tokenizer, form)
        self._fast = FastTokenizer.from_json_str(getattr(tokenizer.definition, form))
        self._as_text = form == "plain"

    def encode(self, texts: list[str]) -> FlatIds:
        try:
            ids, offsets = self._fast.encode_batch_flat(texts, split_special_tokens=self._as_text)
        except ValueError:
            # A text that it cannot encode, such as one with a byte that the vocabulary lacks, fails the whole batch.
            if len(texts) == 1:
                return self._reference.encode(texts)
            half = len(texts) // 2
            return FlatIds.joined([self.encode(texts[:half]), self.encode(texts[half:])])
        return FlatIds(np.frombuffer(ids, dtype="<u4"), np.frombuffer(offsets, dtype="<u8").astype(np.int64))


class Encoders:
    """The encoders of a tokenizer's two forms, loaded when first used.

    `fast` asks for `fastokens`. It is granted form by form, where it is installed and gives the same ids as
    `tokenizers` for `awkward_texts`: processes that share a job choose alike.
    """

    def __init__(self, tokenizer: Tokenizer, fast: bool = True) -> None:
        self.tokenizer = tokenizer
        self.fast = fast and bool(fast_version())
        self._loaded: dict[Form, Encoder] = {}
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._loading: dict[Form, threading.Thread] = {}

    def __reduce__(self) -> tuple:
        # Another process loads its own.
        return Encoders, (self.tokenizer, self.fast)

    @property
    def plain(self) -> Encoder:
        """For text: control-token text is text."""
        return self._get("plain")

    @property
    def control(self) -> Encoder:
        """For rendered chats: control-token text is control tokens."""
        return self._get("control")

    @property
    def names(self) -> str:
        """The libraries of the forms that were asked for."""
        self.wait()
        return ", ".join(sorted({encoder.name for encoder in self._loaded.values()}))

    @property
    def batch_characters(self) -> int:
        return (FastEncoder if self.fast else LibraryEncoder).batch_characters

    def at_hand(self, form: Form) -> Encoder:
        """The encoder of a form; the library's, which gives the same ids, while a thread loads the fast one.

        That takes seconds for a large vocabulary, in which the library counts some megabytes.
        """
        if not self.fast:
            return self._get(form)
        with self._starting:
            if form not in self._loading:
                self._loading[form] = threading.Thread(target=self._get, args=(form,), name=f"{form} encoder")
                self._loading[form].start()
        return LibraryEncoder(self.tokenizer, form) if self._loading[form].is_alive() else self._get(form)

    def wait(self) -> None:
        """Until nothing is being loaded any more."""
        with self._starting:  # One that has not been started cannot be waited for.
            threads = list(self._loading.values())
        for thread in threads:
            thread.join()

    def _get(self, form: Form) -> Encoder:
        with self._lock:
            if form not in self._loaded:
                fast = _load_fast(self.tokenizer, form) if self.fast else None
                self._loaded[form] = fast or LibraryEncoder(self.tokenizer, form)
            return self._loaded[form]


@cache
def fast_version() -> str:
    """The version of `fastokens`, empty where it cannot be used here."""
    try:
        import fastokens  # noqa: F401  A wheel for another system is found by its metadata, and fails here.

        return metadata.version(FAST)
    except ImportError:
        return ""


# Two tokenizers are equal where their fingerprints are (see Tokenizer); loading one takes seconds.
@lru_cache(maxsize=4)
def _load_fast(tokenizer: Tokenizer, form: Form) -> FastEncoder | None:
    """The fast encoder, or None where it does not know the tokenizer or differs from the reference."""
    try:
        fast = FastEncoder(tokenizer, form)
    except ValueError:
        return None
    return fast if same_ids(fast, LibraryEncoder(tokenizer, form), awkward_texts(tokenizer)) else None


def same_ids(one: Encoder, other: Encoder, texts: list[str]) -> bool:
    """Whether both encode each of `texts` to the same ids."""
    left, right = one.encode(texts), other.encode(texts)
    return np.array_equal(left.offsets, right.offsets) and np.array_equal(left.ids, right.ids)


def awkward_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts on which tokenizers tend to differ: spaces, contractions, digits, scripts, marks, control tokens as text.

    The same for the same tokenizer, about 80,000 characters: written ones, strings drawn from all of Unicode, and long
    texts that start alike (version 0.3.2 of `fastokens` took over where it had split the text before, and was wrong
    where they part after white space).
    """
    control = tokenizer.control_texts[:200]
    around = [f"a {text} b" for text in control] + [f"{text}\n {text}{text}" for text in control]
    rng = random.Random(0)
    drawn = ["".join(_draw(rng) for _ in range(rng.randrange(1, 100))) for _ in range(300)]
    start = "some words " * 450 + " " * 700
    alike = [start + end for end in ("x" + "more words " * 200, " ", "\n", "\tx", "y")]
    return [*AWKWARD, *around, " ".join(control), *drawn, *alike]


def _draw(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return chr(rng.randrange(32, 127)) * rng.randrange(1, 4)
    if kind < 0.6:
        return rng.choice(_JOINTS)
    character = chr(rng.randrange(1, rng.choice((0x250, 0x3000, 0xD800, 0x20000, 0x110000))))
    return "" if "\ud800" <= character <= "\udfff" else character


_JOINTS = (
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\u00a0",
    "\u200b",
    "\u200d",
    "\u0301",
    "\ufeff",
    "'s",
    "'LL",
    "12",
    "1234",
    "🙂",
    "の",
)
AWKWARD = (
    "",
    " ",
    "\n",
    "  leading and trailing  ",
    "The cat's toys, THEY'LL say, aren't they've; I'm I'D o'clock ''quoted''",
    "a\tb\t\tc\r\nd\r\re\n\n\nf \n g  \n\n  h\u00a0i\u3000j\u200bk\u2028l\u2029m\x0bn\x0co\x85p",
    "0 12 345 6789 01234567890 3.14159 1,000,000 0x1F 1e-9 ½ ² ① ٣٤٥ १२३ 一二三",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}  # comment\n\n\nif __name__ == \"__main__\":\n\tf(1)\n",
    '<a href="https://example.org/path?q=1&r=2#top">x</a> <!-- y --> &amp; {{ z }} $x$ `code` **bold** ____ --- ===',
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case x.y::z->w @user #tag a/b\\c",
    "Ünïcödé café cafe\u0301 naïve Å Å A\u030a ﬁ ﬂ ǅ ß ẞ İ ı ſ Ω Ω",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. नमस्ते दुनिया। สวัสดีชาวโลก",
    "你好,世界!日本語のテキスト、カタカナ ひらがな。안녕하세요 세계 \u1100\u1161\u11a8",
    "😀😃 👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 ❤️ ☃ \U0001d54f \U00020000 \U000e0041 \ufeff \ufffd \u0301\u0301",
    "\x00\x01\x02\x1b[31m\x7f\x80\x9f\ue000",
    "a" * 300 + " " * 300 + "\n" * 50 + "!" * 100 + "aB" * 100 + "漢" * 100 + "1" * 100,
)
