"""What a measurement ran on."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Machine:
    """The processor's name, the threads that torch computes with, and torch's version."""

    cpu: str
    threads: int
    torch: str


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(_cpu_name(), torch.get_num_threads(), torch.__version__)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
