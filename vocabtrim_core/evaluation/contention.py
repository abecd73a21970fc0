"""How much of the machine other programs used while something was timed."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
BUSY = 0.25  # processors in use by others, from which on timings are doubted
DISAGREEING = 1.5  # largest over smallest of the repeats, from which on they carry no verdict


@dataclass(frozen=True)
class Moment:
    """A reading of the clocks: seconds of the wall, of all processors at work, and of this process."""

    wall: float
    machine: float
    own: float


def moment() -> Moment | None:
    """Now; None where the system does not say (it is not Linux)."""
    try:
        fields = [int(field) for field in _STAT.read_text().split("\n", 1)[0].split()[1:]]
    except (OSError, ValueError):
        return None
    # user, nice, system, irq, softirq, steal: all but idle, waiting for a disk, and guests, which are counted as users.
    at_work = sum(fields[:3]) + sum(fields[5:8])
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return Moment(time.monotonic(), at_work / os.sysconf("SC_CLK_TCK"), own)


def others_since(began: Moment | None) -> float | None:
    """How many processors other programs used on average since `began`."""
    now = moment()
    if began is None or now is None or now.wall - began.wall < 0.5:
        return None
    used = (now.machine - began.machine) - (now.own - began.own)
    return max(0.0, used / (now.wall - began.wall))


def doubt(others: float | None) -> str:
    """A sentence that calls the timings in question; empty where the machine was quiet, or nobody knows."""
    if others is None or others < BUSY:
        return ""
    return (
        f"Other programs used {others:.1f} of this machine's {os.cpu_count()} processors meanwhile, so these timings "
        "are unreliable. Measure again when it is quiet."
    )


def disagree(low: float, high: float) -> bool:
    """Whether repeats lie so far apart that they carry no verdict."""
    return high > DISAGREEING * low
