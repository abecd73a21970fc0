"""Sentences on a page: figures stand out, and whatever users or models wrote stays text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import streamlit as st

from vocabtrim_core.errors import VocabTrimError

# They turn the order of what follows, figures too.
_TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
LONGEST_NAME = 60
_MARKDOWN = re.compile(r"([\\`*_\[\]<>~$:&|]|^[#+\-=])", re.MULTILINE)


def answer(template: str, **figures: object) -> None:
    """The page's answer: `template` with each named figure in bold."""
    bold = {name: f"<b>{shown(str(value))}</b>" for name, value in figures.items()}
    st.html(f'<p class="vt-answer">{html.escape(template, quote=False).format(**bold)}</p>')


def unturned(text: str) -> str:
    """`text` with the code of each character that would turn the direction of reading."""
    return _TURNING.sub(lambda turn: f"U+{ord(turn[0]):04X}", text)


def short_name(name: str) -> str:
    """A user's name for something, `unturned`, and without its middle where it is longer than `LONGEST_NAME`."""
    name, half = unturned(name), LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"


def shown(text: str) -> str:
    """`text` as HTML that shows it as it is, `unturned`."""
    return html.escape(unturned(text))


def plain(text: str) -> str:
    """`text` so that Markdown shows it as it is."""
    return _MARKDOWN.sub(r"\\\1", unturned(text))


def card(title: str, rows: Mapping[str, str]) -> str:
    """A small table under a title, as HTML."""
    lines = "".join(
        f'<tr><td class="vt-muted">{shown(name)}</td><td>{shown(value)}</td></tr>' for name, value in rows.items()
    )
    return f'<div class="vt-card"><h4>{shown(title)}</h4><table>{lines}</table></div>'


def megabytes(count: int) -> str:
    """Bytes for people: MB of 10**6 bytes."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def facts(rows: Mapping[str, str]) -> str:
    """Labels with their values side by side, as HTML."""
    pairs = "".join(
        f'<div><div class="vt-muted">{shown(name)}</div>{shown(value)}</div>' for name, value in rows.items()
    )
    return f'<div class="vt-facts">{pairs}</div>'


@contextmanager
def errors_shown() -> Iterator[None]:
    """Show a user's mistake as a sentence and end the page there; anything else is a bug and surfaces."""
    try:
        yield
    except VocabTrimError as error:
        show_error(error)
        st.stop()


def show_error(problem: VocabTrimError | str) -> None:
    """The sentence of a user's mistake."""
    st.error(plain(str(problem)), icon=":material/error:")
