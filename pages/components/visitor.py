"""What a person counted, kept on the server for their browser, so that a reload or a lost connection loses nothing.

The browser is known by a random key in a cookie: no link carries it, so that a shared link shares nothing else.
"""

from __future__ import annotations

import io
import json
import re
import secrets

import numpy as np
import streamlit as st

from pages.components.resources import Corpus
from pages.components.shelves import Shelves
from pages.components.text import plain
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.counting.counts import MAX_COUNTS_BYTES, read_npz
from vocabtrim_core.embedded import cache_root
from vocabtrim_core.errors import CorpusError
from vocabtrim_core.vocabulary import Ranking

COOKIE = "vocabtrim_visitor"
_KEY = re.compile(r"[\w-]{43}", re.ASCII)
_SUFFIX = ".npz"


def shelves() -> Shelves:
    """Where everybody's are kept."""
    return Shelves(cache_root() / "visitors")


def given_key() -> str | None:
    """The key that the browser sent, "" for one without; None where there is no browser at all."""
    if not st.context.headers:
        return None
    given = st.context.cookies.get(COOKIE, "")
    return given if _KEY.fullmatch(given) else ""


def restore() -> tuple[dict[str, Corpus], dict[str, Ranking]]:
    """What is kept for this browser, corpora and lists, by key: to be asked once a session."""
    key = given_key()
    st.session_state["_visitor"] = key if key is None else key or secrets.token_urlsafe(32)
    corpora: dict[str, Corpus] = {}
    lists: dict[str, Ranking] = {}
    try:
        files = shelves().take(key) if key else {}
    except OSError:  # `keep` says that nothing can be kept.
        files = {}
    for name, content in files.items():
        try:
            kept = _read(content)
        except (CorpusError, ValueError, KeyError, TypeError):
            shelves().remove(key or "", name)  # Written by another version, or damaged.
            continue
        if isinstance(kept, Corpus):
            corpora[name.removesuffix(_SUFFIX)] = kept
        else:
            lists[name.removesuffix(_SUFFIX)] = kept
    return corpora, lists


def remember() -> None:
    """Have the browser keep its key, from now on for as long as the files."""
    key = st.session_state.get("_visitor")
    if key:
        seconds = round(shelves().days * 86_400)
        script = f"document.cookie = '{COOKIE}={key}; path=/; max-age={seconds}; samesite=strict'"
        script += " + (location.protocol === 'https:' ? '; secure' : '')"
        st.html(f"<script>{script}</script>", unsafe_allow_javascript=True)


def keep(name: str, what: Corpus | Ranking) -> None:
    """Keep a corpus or a list for this browser; where that cannot be, say that a reload will lose it."""
    visitor = st.session_state.get("_visitor")
    if not visitor:
        return
    label = what.label if isinstance(what, Corpus) else what.name
    try:
        problem = "" if shelves().put(visitor, name + _SUFFIX, _written(what)) else "it is too large"
    except OSError as error:
        problem = str(error.strerror)
    if problem:
        st.toast(plain(f"{label} cannot be kept on the server ({problem}): a reload of the page will lose it."))


def forget(name: str) -> None:
    """Keep it no longer."""
    visitor = st.session_state.get("_visitor")
    if not visitor:
        return
    try:
        shelves().remove(visitor, name + _SUFFIX)
    except OSError as error:
        st.toast(f"It is removed from this session, and cannot be from the server: {error.strerror}.")


def promise() -> str:
    """How long and for whom corpora are kept, in a sentence."""
    kept = shelves()
    return (
        f"Your corpora are kept on this server for this browser only, until {kept.days:g} days after your last visit "
        f"(at most {kept.visitor_bytes >> 20} MB, the oldest go first). Links name them and do not carry them: send "
        "the counts file along, and a colleague who loads it here sees what your link shows."
    )


def _written(what: Corpus | Ranking) -> bytes:
    if isinstance(what, Corpus):
        note = {"label": what.label, "seconds": what.seconds, "notes": what.notes, "made_from": what.made_from}
        content = np.frombuffer(what.counts.to_bytes(), dtype=np.uint8)
    else:
        note = {"name": what.name, "forced": what.forced, "observed": what.observed, "banned": what.banned}
        content = what.ids
    buffer = io.BytesIO()
    np.savez(buffer, note=np.frombuffer(json.dumps(note).encode(), dtype=np.uint8), content=content)
    return buffer.getvalue()


def _read(data: bytes) -> Corpus | Ranking:
    """What `_written` made; CorpusError, ValueError, KeyError or TypeError for anything else."""
    arrays = read_npz(data, MAX_COUNTS_BYTES)
    note = json.loads(arrays["note"].tobytes())
    if "label" in note:
        counts = TokenCounts.from_bytes(arrays["content"].tobytes())
        return Corpus(note["label"], counts, note["seconds"], tuple(note["notes"]), note["made_from"])
    return Ranking(arrays["content"], note["forced"], note["observed"], note["name"], note["banned"])
