"""The one way to offer a file: every download button of the app is made here."""

from __future__ import annotations

import streamlit as st
from streamlit.delta_generator import DeltaGenerator


def download(
    place: DeltaGenerator, label: str, data: bytes, file_name: str, key: str, icon: str = ":material/download:"
) -> None:
    """A button in `place` that saves `data`.

    The bytes are there before the click, under an address that depends on nothing but them. Streamlit can also call a
    function after the click, but the button's ticket for that is void as soon as the page runs again: a click that
    comes meanwhile finds no file. For the same reason a click does not rerun the page.
    """
    mime = {"csv": "text/csv", "html": "text/html"}.get(file_name.rpartition(".")[2], "application/octet-stream")
    place.download_button(label, data, file_name, mime, key=key, icon=icon, on_click="ignore")


@st.cache_data(max_entries=64, show_spinner=False)
def counts_file(digest: str, _counts: object) -> bytes:
    """Counts as a .npz file, made once for each `digest`."""
    return _counts.to_bytes()  # type: ignore[attr-defined]
