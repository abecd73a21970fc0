from __future__ import annotations

from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pages.components.settings import LIMITS, Settings, tree_text
from vocabtrim_core import defaults
from vocabtrim_core.errors import SettingError
from vocabtrim_core.shipped import shipped_tuning
from vocabtrim_core.trees import DraftShape

NAMES = [field.name for field in fields(Settings)]
texts = st.text(max_size=20) | st.integers().map(str) | st.floats().map(str)


@given(st.dictionaries(st.sampled_from([*NAMES, "other"]), texts))
def test_any_link_gives_usable_settings(query: dict[str, str]) -> None:
    """Catches a link that crashes the app, or that brings a setting where its widget cannot go."""
    settings = Settings.from_query(query)
    for name, (low, high) in LIMITS.items():
        assert low <= getattr(settings, name) <= high
    assert settings.generation.gamma == settings.gamma
    assert (settings.generation.tree is None) == (settings.tree == "")


@given(
    st.builds(
        Settings,
        target=st.text(min_size=1).map(str.strip).filter(bool),
        k=st.integers(1, 300_000),
        temperature=st.just(0.0) | st.floats(0.01, 2),
        top_p=st.floats(0.05, 1),
        dtype=st.sampled_from(defaults.DTYPES),
        tree=st.sampled_from(["", "4,4,16", "2,3,5"]),
    )
)
def test_link_round_trip(settings: Settings) -> None:
    """Catches a setting that is lost or changed between the page and its link."""
    assert Settings.from_query(settings.to_query()) == settings


def test_clean_link() -> None:
    """Catches a link that carries every default."""
    assert Settings().to_query() == {}
    assert set(asdict(Settings())) == set(NAMES)


def test_what_to_draft_is_what_was_fastest_in_the_number_format() -> None:
    """Catches a default of another format, a tuned tree that a link cannot turn off, and a link of an older version."""
    for dtype in ("float16", "bfloat16", "float32"):
        tuned, linked = shipped_tuning(dtype), Settings.from_query({"dtype": dtype})
        assert (linked.k, linked.gamma) == (tuned.k, tuned.gamma)
        assert linked.generation.tree == (DraftShape(*tuned.tree) if tuned.tree else None)
        assert linked.to_query() == {"dtype": dtype}
        chain = replace(linked, tree="")
        assert Settings.from_query(chain.to_query()) == chain
    assert Settings.from_query({"dtype": "bfloat16", "k": "999", "gamma": "5"}).k == 999


def test_typed_tree() -> None:
    """Catches a typed tree that is refused for its spaces, and an impossible one that ends in a traceback."""
    assert tree_text(" 6, 10,60 ") == "6,10,60"
    assert tree_text("") == ""
    for wrong in ("deep", "6,10", "6,10,60,1", "99,4,8", "3,0,8", "3,3,0", "-3,3,3"):
        with pytest.raises(SettingError):
            tree_text(wrong)
