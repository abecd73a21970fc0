"""Tables as HTML, on the pages and in the report: text on the left, figures on the right, and on a narrow screen a
list of cards, so that no column is ever out of sight."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from pages.components.text import shown
from vocabtrim_core.coverage import DomainMatrix

STYLE = Path(__file__).with_name("tables.css")
_FIGURE = re.compile(r"[-−+±<]?\d")
# From nothing to everything, in one direction of lightness: it reads the same without colour.
_LIGHT, _DARK = (0xEE, 0xF5, 0xF5), (0x0B, 0x5A, 0x60)
_DARK_FROM = 0.76


def table(frame: pd.DataFrame, meanings: Mapping[str, str] | None = None, caption: str = "") -> str:
    """`frame` as an HTML table; the first column names the row. `meanings` of columns follow, to unfold."""
    names = [str(name).strip() for name in frame.columns]
    numbers = [_numeric(frame.iloc[:, place]) for place in range(len(names))]
    rows = [
        "".join(
            _cell(place, name, value, number)
            for place, (name, value, number) in enumerate(zip(names, row, numbers, strict=True))
        )
        for row in frame.itertuples(index=False, name=None)
    ]
    return _framed(names, numbers, rows, caption) + _meanings(meanings or {})


def heat_table(found: DomainMatrix) -> str:
    """Coverage of each corpus (column) by each ranking (row), darker where more is covered."""
    names = ["ranking from", *found.columns]
    rows = []
    for name, shares, lows, highs in zip(found.rows, found.coverage, found.low, found.high, strict=True):
        cells = [_cell(0, names[0], name, False)]
        for column, share, low, high in zip(found.columns, shares, lows, highs, strict=True):
            note = f"95% interval {low:.1%} to {high:.1%}" if low == low else "no interval"
            text = f"{share:.1%}" if share == share else "–"
            looks = f' style="{_shade(share)}" title="{note}"' if share == share else ""
            cells.append(f'<td class="vt-number" data-label="{shown(column)}"{looks}>{text}</td>')
        rows.append("".join(cells))
    scale = "".join(f'<span style="{_shade(step / 10)}"></span>' for step in range(11))
    legend = f'<div class="vt-scale">0% covered {scale} 100%</div>'
    return _framed(names, [False] + [True] * len(found.columns), rows, "", "vt-heat") + legend


def _framed(names: list[str], numbers: list[bool], rows: list[str], caption: str, also: str = "") -> str:
    heads = "".join(
        f'<th scope="col"{_class(number)}>{shown(name)}</th>' for name, number in zip(names, numbers, strict=True)
    )
    size = f"font-size:{0.2 * len(names):.1f}rem"  # of the frame alone: see the style sheet
    told = f"<caption>{shown(caption)}</caption>" if caption else ""
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="vt-table {also}" style="{size}"><table>{told}<thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(place: int, name: str, value: object, number: bool) -> str:
    text = shown("" if value is None else str(value))
    if place == 0:
        return f'<th scope="row" data-label="{shown(name)}"{_class(number)}>{text}</th>'
    return f'<td data-label="{shown(name)}"{_class(number)}>{text}</td>'


def _class(number: bool) -> str:
    return ' class="vt-number"' if number else ""


def _numeric(values: pd.Series) -> bool:
    """Whether most of what is in a column begins with a figure."""
    texts = [str(value) for value in values if value is not None and str(value)]
    return 2 * sum(bool(_FIGURE.match(text)) for text in texts) > len(texts)


def _meanings(meanings: Mapping[str, str]) -> str:
    if not meanings:
        return ""
    lines = "".join(f"<dt>{shown(name)}</dt><dd>{shown(text)}</dd>" for name, text in meanings.items())
    return f'<details class="vt-meanings"><summary>What the columns mean</summary><dl>{lines}</dl></details>'


def _shade(share: float) -> str:
    parts = [round(light + (dark - light) * share) for light, dark in zip(_LIGHT, _DARK, strict=True)]
    return f"background:rgb({parts[0]},{parts[1]},{parts[2]});color:{'#ffffff' if share > _DARK_FROM else '#000000'}"
