"""Sentences on a page: figures stand out, and whatever users or models wrote stays text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import streamlit as st

from vocabtrim_core.errors import VocabTrimError

_MARKDOWN = re.compile(r"([\\`*_\[\]<>~$:&|]|^[#+\-=])", re.MULTILINE)


def answer(template: str, **figures: object) -> None:
    """The page's answer: `template` with each named figure in bold."""
    bold = {name: f"<b>{html.escape(str(value))}</b>" for name, value in figures.items()}
    st.html(f'<p class="vt-answer">{html.escape(template, quote=False).format(**bold)}</p>')


def plain(text: str) -> str:
    """`text` so that Markdown shows it as it is."""
    return _MARKDOWN.sub(r"\\\1", text)


def card(title: str, rows: Mapping[str, str]) -> str:
    """A small table under a title, as HTML."""
    lines = "".join(
        f'<tr><td class="vt-muted">{html.escape(name)}</td><td>{html.escape(value)}</td></tr>'
        for name, value in rows.items()
    )
    return f'<div class="vt-card"><h4>{html.escape(title)}</h4><table>{lines}</table></div>'


def megabytes(count: int) -> str:
    """Bytes for people: MB of 10**6 bytes."""
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def facts(rows: Mapping[str, str]) -> str:
    """Labels with their values side by side, as HTML."""
    pairs = "".join(
        f'<div><div class="vt-muted">{html.escape(name)}</div>{html.escape(value)}</div>'
        for name, value in rows.items()
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
