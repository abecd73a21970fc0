"""Tokens as readable chips: escaped HTML for `st.html`, with marks that do not rely on colour."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import regex

from vocabtrim_core.decoding.engine import Cycle
from vocabtrim_core.token_text import INVISIBLE, WHITE_SPACE, text_of, token_bytes, undefined
from vocabtrim_core.tokenization import Tokenizer

Fate = Literal["accepted", "rejected", "discarded", "correction", "outside", "bonus", "vanilla"]

STYLE = Path(__file__).with_name("style.css")
LEGEND: dict[Fate, tuple[str, str]] = {
    "accepted": ("accepted", "Drafted, and the target agreed"),
    "rejected": ("rejected", "Drafted, and the target did not agree"),
    "discarded": ("discarded", "Drafted after a rejected token, so it was never judged"),
    "correction": ("correction", "The target's own token in place of a rejected one"),
    "outside": ("correction from outside k", "The same, where the trimmed drafter does not have the token at all"),
    "bonus": ("bonus", "The target's own token after a draft that was accepted whole"),
    "vanilla": ("no draft", "Decoded by the target alone"),
}
# The end of the generated text decides last: a chip that spans tokens shows the rarest thing that happened to them.
_WEIGHT: tuple[Fate, ...] = ("vanilla", "accepted", "bonus", "correction", "outside")
_BROKEN = "\ufffd"
_LONGEST_GROUP = 12


@dataclass(frozen=True)
class Mark:
    """A token, what became of it, and what its tooltip says."""

    token_id: int
    fate: Fate
    note: str

    @property
    def emitted(self) -> bool:
        return self.fate not in ("rejected", "discarded")


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text, bytes that are none in hex ("⟨E2 96⟩")."""
    (data,) = token_bytes(tokenizer, [token_id])
    return text_of(data) if data else undefined(token_id)


def grouped(tokenizer: Tokenizer, ids: Sequence[int], before: Sequence[int]) -> list[tuple[int, str]]:
    """Cut `ids`, which follow `before`, into the shortest runs that are whole characters: (tokens, their text) each."""
    pieces: list[tuple[int, str]] = []
    start, context = 0, list(before)
    while start < len(ids):
        size, text = _whole(tokenizer, context, ids[start : start + _LONGEST_GROUP])
        pieces.append((size, text))
        context = list(ids[start : start + size])
        start += size
    # Several code points may be one character to the reader: flags, skin tones, accents.
    ends, position = set(), 0
    for grapheme in regex.findall(r"\X", "".join(text for _, text in pieces)):
        position += len(grapheme)
        ends.add(position)
    groups: list[tuple[int, str]] = []
    position, open_size, open_text = 0, 0, ""
    for size, text in pieces:
        position += len(text)
        open_size, open_text = open_size + size, open_text + text
        if position in ends:
            groups.append((open_size, open_text))
            open_size, open_text = 0, ""
    return groups + ([(open_size, open_text)] if open_size else [])


def marks_of(cycles: Iterable[Cycle], tokenizer: Tokenizer) -> list[Mark]:
    """Every drafted and every emitted token, in reading order: a draft's refused end stands before its correction."""
    marks: list[Mark] = []
    for cycle in cycles:
        own_id = cycle.emitted_ids[-1] if cycle.own_token else None
        refused: int | None = None
        for node in _told(cycle):
            token = cycle.drafted_ids[node]
            odds = f"drafter {_share(cycle.draft_probs[node])}, target {_share(cycle.target_probs[node])}"
            if node in cycle.path:
                marks.append(Mark(token, "accepted", f"accepted: {odds}"))
            elif refused is None and own_id is not None:
                refused = token
                note = f"rejected: {odds}; the target chose {_named(tokenizer, own_id)} instead"
                marks.append(Mark(token, "rejected", note))
            else:
                marks.append(Mark(token, "discarded", "discarded: it followed a rejected token"))
        if own_id is None or cycle.next_prob is None:
            continue
        target = f"target {_share(cycle.next_prob)}"
        if cycle.own_token == "correction" and refused is not None:
            note = f"correction: {target}; the drafter had proposed {_named(tokenizer, refused)}"
            if cycle.out_of_vocabulary:
                note += "; the drafter's kept tokens do not include this one"
            marks.append(Mark(own_id, "outside" if cycle.out_of_vocabulary else "correction", note))
        elif cycle.own_token == "bonus":
            marks.append(Mark(own_id, "bonus", f"bonus after a whole draft: {target}"))
        else:
            marks.append(Mark(own_id, "vanilla", f"no draft: {target}"))
    return marks


def _told(cycle: Cycle) -> list[int]:
    """The drafted tokens that the text shows, as indices: the accepted path, then down the first branch refused."""
    nodes = list(cycle.path)
    node = nodes[-1] if nodes else -1
    while cycle.own_token and node in cycle.parents:
        node = cycle.parents.index(node)
        nodes.append(node)
    return nodes


def decoded_chips(
    cycles: Iterable[Cycle], tokenizer: Tokenizer, before: Sequence[int], parts_at: int | None = None
) -> str:
    """A run as HTML. `before` are the last prompt ids, which the output follows; the token `parts_at` of the output is
    the first that is not vanilla's."""
    marks = marks_of(cycles, tokenizer)
    groups = iter(grouped(tokenizer, [mark.token_id for mark in marks if mark.emitted], before))
    chips: list[str] = []
    size, text = 0, ""
    waiting: list[Mark] = []
    emitted = 0
    for mark in marks:
        if not mark.emitted:
            # Inside an unfinished character this stands before the chip that the character becomes.
            chips.append(_chip(token_text(tokenizer, mark.token_id), mark.fate, _note(tokenizer, mark)))
            continue
        if not waiting:
            size, text = next(groups)
        if emitted == parts_at:
            chips.append('<span class="vt-parts">from here on not vanilla\u2019s text</span>')
        emitted += 1
        waiting.append(mark)
        if len(waiting) == size:
            fate = max((one.fate for one in waiting), key=_WEIGHT.index)
            chips.append(_chip(text, fate, "\n".join(_note(tokenizer, one) for one in waiting)))
            waiting = []
    return _wrapped(chips) if chips else _wrapped(['<span class="vt-wait">waiting</span>'])


def list_chips(tokenizer: Tokenizer, ids: Iterable[int], notes: Iterable[str]) -> str:
    """Tokens of a list as HTML, each with a note in its tooltip."""
    chips = (
        _chip(token_text(tokenizer, token), "vanilla", f"{_named(tokenizer, token)}\n{note}", wrap=False)
        for token, note in zip(ids, notes, strict=True)
    )
    return _wrapped(chips)


def legend(fates: Iterable[Fate]) -> str:
    """One sample chip a kind."""
    return _wrapped(_chip(LEGEND[fate][0], fate, LEGEND[fate][1]) for fate in fates)


def visible(text: str) -> str:
    """Escaped text with marks for what cannot be seen."""
    shown = []
    for character in text:
        if character in WHITE_SPACE:
            shown.append(f'<span class="vt-space">{WHITE_SPACE[character]}</span>')
        elif unicodedata.category(character) in INVISIBLE and len(text) == 1:
            shown.append(f'<span class="vt-space">U+{ord(character):04X}</span>')
        else:
            shown.append(html.escape(character))
    return "".join(shown)


def _chip(text: str, fate: Fate, note: str, wrap: bool = True) -> str:
    chip = f'<span class="vt vt-{fate}" title="{html.escape(note)}">{visible(text)}</span>'
    return f"{chip}<br>" if wrap and text.endswith("\n") and fate not in ("rejected", "discarded") else chip


def _wrapped(chips: Iterable[str]) -> str:
    return f'<div class="vt-text">{"".join(chips)}</div>'


def _note(tokenizer: Tokenizer, mark: Mark) -> str:
    return f"{_named(tokenizer, mark.token_id)} {mark.note}"


def _named(tokenizer: Tokenizer, token_id: int) -> str:
    text = token_text(tokenizer, token_id).translate({ord(plain): mark for plain, mark in WHITE_SPACE.items()})
    return f"“{text}” (id {token_id})"


def _share(probability: float) -> str:
    return f"{probability:.1%}"


def _whole(tokenizer: Tokenizer, before: list[int], ids: Sequence[int]) -> tuple[int, str]:
    """The fewest of the first tokens that make whole characters, and their text."""
    known = len(tokenizer.decode(before))
    for size in range(1, len(ids) + 1):
        text = tokenizer.decode([*before, *ids[:size]])[known:]
        if text and _BROKEN not in text:
            return size, text
    return 1, token_text(tokenizer, ids[0])
