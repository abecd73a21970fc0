"""The processor that this process runs on: its name, and what of it decides how fast weights are read."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

# PyTorch's names for instructions, and those that people know, the widest first.
_FEATURES = {
    "amx_bf16": "AMX bf16",
    "avx512_bf16": "AVX-512 bf16",
    "avx512_fp16": "AVX-512 fp16",
    "avx512_f": "AVX-512",
    "avx2": "AVX2",
    "f16c": "F16C",
    "bf16": "bf16",
    "sve2": "SVE2",
    "neon": "NEON",
}
BFLOAT16_UNITS = frozenset({"AMX bf16", "AVX-512 bf16", "bf16"})


@cache
def processor_name() -> str:
    """What the system calls the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


@cache
def processor_features() -> tuple[str, ...]:
    """Instructions for vectors and short number formats that it has."""
    capabilities = torch.cpu.get_capabilities()
    return tuple(name for key, name in _FEATURES.items() if capabilities.get(key))
