"""Colours and names as a reader sees them: contrast, colour blindness, long names, and text that turns around."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pages.components import charts, tables
from pages.components.progress import clock
from pages.components.text import LONGEST_NAME, plain, short_name, shown
from vocabtrim_core.coverage import DomainMatrix

THEME = tomllib.loads((Path(__file__).parents[2] / ".streamlit/config.toml").read_text())["theme"]
GROUNDS = [THEME[mode]["backgroundColor"] for mode in ("light", "dark")]
# Linear RGB as people without red or green cones see it (Machado, Oliveira and Fernandes 2009, severity 1).
PROTANOPIA = np.array(
    [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
)
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
)
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
)


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2's contrast ratio."""
    low, high = sorted(float(linear(colour) @ TO_XYZ[1]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    parts = TO_XYZ @ rgb.clip(0, 1) / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(parts > 216 / 24389, np.cbrt(parts), (24389 / 27 * parts + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_the_colours_of_charts_can_be_told_apart() -> None:
    """Bug: two lines that one man in twelve sees as one (a distance of 1.5 between violet and blue was shipped)."""
    colours = {*charts.LINES, *charts.PART_COLOURS, *charts.COLOURS.values(), charts.ORANGE}
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    for one, other in itertools.combinations(sorted(colours), 2):
        for sight in (np.eye(3), PROTANOPIA, DEUTERANOPIA):
            assert np.linalg.norm(lab(sight @ linear(one)) - lab(sight @ linear(other))) > 18, (one, other)


def test_what_is_drawn_stands_out_from_the_page() -> None:
    """Bug: lines, or white text on a button or a tag, that are too pale for a light or a dark page."""
    for ground in GROUNDS:
        assert all(contrast(colour, ground) >= 3 for colour in {*charts.LINES, *charts.PART_COLOURS})
    for mode in ("light", "dark"):
        assert contrast("#ffffff", THEME[mode]["primaryColor"]) >= 4.5
        assert contrast(THEME[mode]["primaryColor"], THEME[mode]["backgroundColor"]) >= 3
        assert contrast(THEME[mode]["linkColor"], THEME[mode]["backgroundColor"]) >= 4.5


def test_lines_differ_in_more_than_colour() -> None:
    """Bug: a chart that nobody can read in black and white."""
    styles = [charts.line_style(number)["dash"] for number in range(len(charts.LINES))]
    assert len(set(styles)) == len(set(charts.SYMBOLS)) == len(charts.LINES)
    assert all(one != other for one, other in itertools.pairwise(charts.PART_PATTERNS))


def test_figures_on_the_matrix_can_be_read() -> None:
    """Bug: figures at a contrast of 3, and a scale that stretches to the data."""
    shares = np.linspace(0, 1, 21)[None]
    found = DomainMatrix(("row",), tuple(map(str, range(21))), 10, shares, shares, shares)
    shades = re.findall(r"background:rgb\((\d+),(\d+),(\d+)\);color:(#\w{6})\" title", tables.heat_table(found))
    assert len(shades) == 21
    luminances = []
    for red, green, blue, ink in shades:
        ground = f"#{int(red):02x}{int(green):02x}{int(blue):02x}"
        assert contrast(ground, ink) >= 4.5
        luminances.append(float(linear(ground) @ TO_XYZ[1]))
    assert luminances == sorted(luminances, reverse=True)


@given(st.text())
def test_no_name_turns_its_surroundings(name: str) -> None:
    """Bug: a right-to-left override in a file's name that reverses the headline, figures too; a name without end."""
    for text in (shown(name), plain(name), short_name(name)):
        assert not re.search("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]", text)
    assert len(short_name(name)) <= LONGEST_NAME
    assert "<" not in shown(name)


def test_a_long_name_keeps_its_ends() -> None:
    """Bug: a file type that is cut off, or a name of sixty characters that is shortened."""
    assert short_name("a" * 300 + ".jsonl").endswith(".jsonl") and "…" in short_name("a" * 300)
    assert short_name("b" * LONGEST_NAME) == "b" * LONGEST_NAME
    assert short_name("\u202egpj.txt") == "U+202Egpj.txt"


@given(st.lists(st.text(max_size=8), min_size=1, max_size=5), st.text(max_size=30))
def test_tables_escape_everything(names: list[str], text: str) -> None:
    """Bug: a name or a cell that reaches the page as markup."""
    frame = pd.DataFrame([[f"<i>{text}"] * len(names)], columns=[f"<b>{name}" for name in names])
    made = tables.table(frame, {f"<u>{text}": "<s>"}, f"<q>{text}")
    assert not re.search(r"<(i|b|u|s|q)>", made)


def test_figures_stand_right_and_text_left() -> None:
    """Bug: text on the right, or figures whose digits do not line up."""
    frame = pd.DataFrame(
        {"k": ["4,096", "full"], "speed": ["1.04× (0.9 to 1.2)", ""], "gap": ["−8.5%", "+1%"], "where": ["a 1", "b"]}
    )
    heads = re.findall(r'<th scope="col"( class="vt-number")?>', tables.table(frame))
    assert [bool(head) for head in heads] == [False, True, True, False]


def test_durations_are_short() -> None:
    """Bug: minutes shown as hours, 60 seconds."""
    assert [clock(one) for one in (0.2, 7, 59.6, 750, 3_720)] == ["0:00", "0:07", "1:00", "12:30", "1:02:00"]
