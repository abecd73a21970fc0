"""A bar for what takes long: what is being done, for how long already, and about how long it still takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pages.components.text import plain
from vocabtrim_core.progress import Progress

_EARLY = 2.0  # seconds, before which nothing is said of what is left


def timed_progress(message: str, place: DeltaGenerator | None = None) -> Progress:
    """A bar that starts with `message`, and what moves it: a share and what is being done. A share that falls begins
    another step, of which the time left is then said."""
    began = step_began = time.monotonic()
    last = 0.0
    bar = (place or st).progress(0.0, message)

    def report(share: float, message: str) -> None:
        nonlocal step_began, last
        now, share = time.monotonic(), min(1.0, max(0.0, share))
        if share < last:
            step_began = now
        last = share
        text = f"{message} · {clock(now - began)}"
        if now - step_began > _EARLY and 0.02 < share < 1.0:
            text += f", about {clock((now - step_began) * (1 - share) / share)} left of this step"
        bar.progress(share, plain(text))

    return report


def clock(seconds: float) -> str:
    """A duration for people: 0:07, 12:30, 1:02:00."""
    whole = round(seconds)
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def cancel_button(place: DeltaGenerator, key: str, on_click: Callable[[], None] | None = None) -> None:
    """A button for as long as something runs. Any click reruns the page at the next step of the bar and so ends it."""
    place.button("Cancel", key=key, icon=":material/stop:", on_click=on_click)
