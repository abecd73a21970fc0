"""Every registered family is decoded rightly or refused with a sentence; which is which."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import FAMILIES, CannotBuildError, verdict

# All others run vanilla, in chains and in trees.
CHAINS: frozenset[str] = frozenset()
REFUSED: frozenset[str] = frozenset()
NOT_BUILT: dict[str, str] = {}


def expected(family: str) -> tuple[str, str, str]:
    if family in REFUSED:
        return ("refused",) * 3
    return "right", "right", "refused" if family in CHAINS else "right"


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in NOT_BUILT])
def test_a_family_is_right_or_refused(family: str, tmp_path: Path) -> None:
    """Bug: a family whose text is another than its own `generate` writes, or that ends in a traceback; a family that
    ran before is refused."""
    found = verdict(family, tmp_path)
    assert (found.vanilla, found.chains, found.trees) == expected(family), found.words
    assert "\n" not in found.words


@pytest.mark.parametrize("family", NOT_BUILT)
def test_what_cannot_be_built_cannot(family: str, tmp_path: Path) -> None:
    """Bug: a family that could be tried by now is still left out."""
    with pytest.raises(CannotBuildError, match=NOT_BUILT[family]):
        verdict(family, tmp_path)
