"""What a token spells: its bytes, and a form of it that a person can read.

Tokenizers write their vocabulary in one of two ways. Byte-level BPE (GPT-2, Llama 3, Qwen) spells every byte as a
printable letter, so that a token may be any run of bytes. The SentencePiece way (Gemma, Llama 2) writes text with `▁`
for a space, and has a token `<0x00>`..`<0xFF>` for every byte, to fall back on for characters without a token.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Callable, Iterable
from functools import cache, lru_cache

from vocabtrim_core.tokenization import Tokenizer

_BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
# Marks for white space, and the Unicode categories of what cannot be seen either.
WHITE_SPACE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}
INVISIBLE = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs")
_LONGEST_RUN = 4


def byte_fallback_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids of the tokens `<0x00>`..`<0xFF>`, in that order; empty where the tokenizer has no byte fallback.

    Byte-level BPE has none: there a single byte is a token like any other, and half of them are letters, digits and
    signs with counts of their own.
    """
    found = [tokenizer.id_of(piece) for piece in _BYTE_TOKENS]
    ids = [token_id for token_id in found if token_id is not None]
    return ids if len(ids) == len(found) else []


def byte_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids of the tokens that spell characters without a token of their own, whatever the kind of tokenizer.

    They are the byte-fallback tokens or, in byte-level BPE, the single bytes that UTF-8 has outside ASCII (0x80..0xF4
    without 0xC0 and 0xC1). Keeping the latter is insurance against a script that the corpus does not show, at some cost
    for the rest where k is small.
    """
    if not is_byte_level(tokenizer):
        return byte_fallback_ids(tokenizer)
    letters = {latin: letter for letter, latin in _latin_of_letter().items()}
    found = [tokenizer.id_of(letters[chr(byte)]) for byte in range(0x80, 0xF5) if byte not in (0xC0, 0xC1)]
    return [token_id for token_id in found if token_id is not None]


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Whether the vocabulary is spelled in byte-level BPE's alphabet."""
    space = tokenizer.id_of("Ġ")
    return space is not None and tokenizer.decode([space]) == " "


def token_bytes(tokenizer: Tokenizer, token_ids: Iterable[int]) -> list[bytes]:
    """The bytes that each token adds to a text; of a control token, those of its name; of an undefined id, none."""
    known, letters = _spelling(tokenizer)
    spelled = []
    for token_id in token_ids:
        piece = tokenizer.piece(token_id)
        if token_id in known:
            spelled.append(known[token_id])
        elif letters is not None:
            translated = piece.translate(letters)
            # An added token is plain text, also where its characters are not of the alphabet.
            spelled.append(translated.encode("latin-1") if max(translated, default="") <= "\xff" else piece.encode())
        else:
            spelled.append(piece.replace("▁", " ").encode())
    return spelled


def readable_tokens(tokenizer: Tokenizer, token_ids: Iterable[int]) -> list[str]:
    """Each token as a person can read it: whitespace marked (`·` `↵` `⇥`), stray bytes in hex (`⟨E4 BD⟩`)."""
    token_ids = list(token_ids)
    spelled = zip(token_ids, token_bytes(tokenizer, token_ids), strict=True)
    return [readable(data) if data else undefined(token_id) for token_id, data in spelled]


def readable(data: bytes) -> str:
    """Bytes of a text as a person can read them: nothing invisible, and what is not UTF-8 in hex."""
    return text_of(data, _visible)


def text_of(data: bytes, shown: Callable[[str], str] = str) -> str:
    """Bytes as text, through `shown`; what is not UTF-8 in hex."""
    # Python decodes a byte that is not UTF-8 to U+DC00 + byte.
    runs = itertools.groupby(data.decode("utf-8", "surrogateescape"), key=lambda char: "\udc80" <= char <= "\udcff")
    return "".join(
        f"⟨{' '.join(f'{ord(char) - 0xDC00:02X}' for char in run)}⟩" if stray else shown("".join(run))
        for stray, run in runs
    )


def undefined(token_id: int) -> str:
    """What stands for an id that the tokenizer does not define."""
    return f"⟨undefined {token_id}⟩"


# Two tokenizers are equal where their fingerprints are.
@lru_cache(maxsize=4)
def _spelling(tokenizer: Tokenizer) -> tuple[dict[int, bytes], dict[int, str] | None]:
    """The bytes of control and byte-fallback tokens, and the translation of a byte-level vocabulary's letters."""
    control = {token_id: tokenizer.piece(token_id).encode() for token_id in tokenizer.control_ids}
    fallback = {token_id: bytes([byte]) for byte, token_id in enumerate(byte_fallback_ids(tokenizer))}
    # One byte a letter, so that Latin-1 of the translated letters is the bytes.
    letters = str.maketrans(_latin_of_letter()) if is_byte_level(tokenizer) else None
    return control | fallback, letters


def _visible(text: str) -> str:
    shown = []
    for char, run in itertools.groupby(text):
        count = len(list(run))
        if char in WHITE_SPACE:
            mark = WHITE_SPACE[char]
        elif unicodedata.category(char) in INVISIBLE:
            mark = f"⟨U+{ord(char):04X}⟩"
        else:
            shown.append(char * count)
            continue
        shown.append(mark * count if count <= _LONGEST_RUN else f"{mark}×{count}")
    return "".join(shown)


@cache
def _latin_of_letter() -> dict[str, str]:
    """From byte-level BPE's alphabet (GPT-2) to the Latin-1 character of the byte that a letter stands for."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): chr(byte) for byte in printable} | {chr(0x100 + i): chr(byte) for i, byte in enumerate(others)}
