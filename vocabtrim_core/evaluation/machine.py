"""What a measurement ran on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vocabtrim_core.processor import processor_features, processor_name


@dataclass(frozen=True)
class Machine:
    """The processor's name, the threads that torch computes with, torch's version, and the processor's features (see
    `processor_features`)."""

    cpu: str
    threads: int
    torch: str
    features: tuple[str, ...] = ()


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(processor_name(), torch.get_num_threads(), torch.__version__, processor_features())
