"""What became of what was read: for each source how many records, turns, calls and thoughts were counted or left out.

A ledger is a set of entries with a number each, so that ledgers of parts add up in any order. Of every item, what was
read is what was counted and what was left out together.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

COUNTED = "counted"

RECORDS, TURNS, CALLS, THOUGHTS, TOOLS = "records", "turns", "tool calls", "thoughts", "tool definitions"
CONTROL = "turns with control-token text"
# In the order in which they are shown; items of notes on single records come after them.
ITEMS = (RECORDS, TURNS, CALLS, THOUGHTS, TOOLS, CONTROL)

NOT_ASSISTANTS = "not the assistant's"
BY_TEMPLATE = "dropped or changed by the chat template"
AS_TEXT = "counted as text, not as the token"


class Entry(NamedTuple):
    """Something of one source and what became of it: `COUNTED`, or why it was left out."""

    file: str
    item: str
    outcome: str


Ledger = Counter[tuple[str, str]]  # of one source, by item and outcome

_QUOTED = re.compile(r"[“`][^”`]*[”`]")
_NUMBER = re.compile(r"\d[\d,]*")
_REFUSED = re.compile(r"^The chat template of .* refuses these messages")
_MAX_REASON = 100


def kind_of(reason: str) -> str:
    """`reason` without what differs from record to record, so that equal faults add up."""
    if _REFUSED.match(reason):
        return "refused by the chat template"
    if reason.startswith("The chat template of"):
        return "not told apart from the chat template's own words"
    general = _NUMBER.sub("…", _QUOTED.sub("…", reason.partition(" (")[0].partition(";")[0].partition(":")[0]))
    return general.strip()[:_MAX_REASON]


def summary(entries: Iterable[tuple[Entry, int]]) -> dict[str, dict[str, dict]]:
    """By source and item: `read`, `counted` and `left_out` (a number by reason)."""
    files: dict[str, dict[str, dict]] = {}
    for (file, item, outcome), number in entries:
        line = files.setdefault(file, {}).setdefault(item, {"read": 0, "counted": 0, "left_out": {}})
        line["read"] += number
        if outcome == COUNTED:
            line["counted"] += number
        else:
            line["left_out"][outcome] = line["left_out"].get(outcome, 0) + number
    return files


def together(entries: Iterable[tuple[Entry, int]]) -> dict[str, dict]:
    """`summary` of all sources together: by item."""
    return summary((Entry("", *entry[1:]), number) for entry, number in entries).get("", {})


def sentences(items: Mapping[str, Mapping]) -> list[str]:
    """A sentence for each item: how many were read and counted, and what was left out and why."""
    order = {item: place for place, item in enumerate(ITEMS)}
    lines = []
    for item in sorted(items, key=lambda item: (order.get(item, len(order)), item)):
        line = items[item]
        left = [f"{number:,} {reason}" for reason, number in sorted(line["left_out"].items())]
        if item == CONTROL:
            as_text = line["left_out"].get(AS_TEXT, 0)
            lines.append(
                f"{_many(line['read'], item)}: in {line['counted']:,} of the assistant's it counts as the token, in "
                f"{as_text:,} as text."
            )
        elif left:
            lines.append(f"{_many(line['read'], item)} read, {line['counted']:,} counted; left out: {', '.join(left)}.")
        else:
            lines.append(f"{_many(line['read'], item)} read, all counted.")
    return lines


def _many(number: int, item: str) -> str:
    first, _, rest = item.partition(" ")
    one = item.removesuffix("s") if not rest.startswith("with") else f"{first.removesuffix('s')} {rest}"
    return f"{number:,} {item if number != 1 else one}"
