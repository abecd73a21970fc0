"""Text for a terminal."""

from __future__ import annotations


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """The lines of a table, its columns aligned on the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def times(spread: dict) -> str:
    """A `Spread` of ratios, as a dict."""
    return f"{spread['median']:.2f}x ({spread['low']:.2f}-{spread['high']:.2f})"
