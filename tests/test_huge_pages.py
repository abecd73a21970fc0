import platform
import re
import sys
from pathlib import Path

import pytest
import torch

from vocabtrim_core.huge_pages import _joined, use_huge_pages

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HAS_PAGES = SETTING.exists() and "[never]" not in SETTING.read_text()
# The kernel that can be asked to do it at once.
IS_NEW = sys.platform == "linux" and tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 1)
SIZE = 64 * 2**20


def huge_kilobytes(address: int) -> int:
    """What the kernel holds in huge pages of the mapping that `address` is in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return int(line.split()[1])
    raise AssertionError("no such mapping")


@pytest.mark.skipif(not (HAS_PAGES and IS_NEW), reason="this kernel does not give huge pages on demand")
def test_memory_is_in_huge_pages_and_keeps_its_bytes():
    """Catches advice given for the wrong range or with the wrong number, which the kernel ignores in silence."""
    tensor = torch.arange(SIZE // 8)
    middle = tensor.data_ptr() + SIZE // 2
    use_huge_pages([(tensor.data_ptr(), tensor.nbytes)])
    assert huge_kilobytes(middle) >= SIZE * 0.9 / 1024
    assert torch.equal(tensor, torch.arange(SIZE // 8))


def test_neighbours_are_advised_as_one():
    """Catches blocks smaller than a page that are each rounded away, though together they fill many."""
    blocks = [(3_000_000, 1_000_000), (0, 1_000_000), (1_000_064, 1_000_000), (2_000_128, 999_000)]
    assert _joined(blocks) == [(0, 4_000_000)]
    assert _joined([(0, 10), (10_000_000, 10)]) == [(0, 10), (10_000_000, 10_000_010)]


@pytest.mark.parametrize("blocks", [[], [(4096, 100)], [(2**46, 8 * 2**20)]], ids=["none", "small", "not mapped"])
def test_what_cannot_be_advised_is_left(blocks):
    """Catches a failure of the advice that ends the loading of a model."""
    use_huge_pages(blocks)


def test_other_systems_are_left_alone(monkeypatch):
    """Catches a call of Linux's function with Linux's numbers elsewhere."""
    from vocabtrim_core import huge_pages

    monkeypatch.setattr(sys, "platform", "darwin")
    huge_pages._madvise.cache_clear()
    try:
        assert huge_pages._madvise() is None
    finally:
        huge_pages._madvise.cache_clear()
