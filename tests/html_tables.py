"""Read the HTML tables of a page that was run headless."""

from __future__ import annotations

import html
import re

from streamlit.testing.v1 import AppTest

_CELL = re.compile(r'<t[hd][^>]*data-label="([^"]*)"[^>]*>(.*?)</t[hd]>')


def tables(app: AppTest) -> list[dict[str, list[str]]]:
    """The tables in order, each as the texts of its columns by name."""
    found = []
    for part in app.html:
        if "vt-table" in part.value and "<table>" in part.value:
            columns: dict[str, list[str]] = {}
            for name, text in _CELL.findall(part.value):
                columns.setdefault(html.unescape(name), []).append(html.unescape(text))
            found.append(columns)
    return found


def table_with(app: AppTest, column: str) -> dict[str, list[str]]:
    """The first table that has this column."""
    return next(table for table in tables(app) if column in table)
