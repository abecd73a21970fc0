"""What `auto` is, and what is said about a number format."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vocabtrim_core import defaults, number_format
from vocabtrim_core.errors import SettingError
from vocabtrim_core.number_format import DTYPES, fastest, time_formats

KEPT_TIMINGS = number_format._kept_timings  # as it is outside of tests


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of its own, and nothing remembered."""
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path))
    monkeypatch.setattr(number_format, "_kept_timings", KEPT_TIMINGS)
    number_format._fastest.cache_clear()
    yield tmp_path
    number_format._fastest.cache_clear()


def kernels_for(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    dtypes = {DTYPES[name] for name in names}
    monkeypatch.setattr(number_format, "has_kernels", dtypes.__contains__)


def test_the_names_offered_are_those_that_can_be_loaded() -> None:
    """Bug: the command line offers a format that the loader does not know."""
    assert set(defaults.DTYPES) == {number_format.AUTO, *DTYPES}
    assert defaults.DTYPES[0] == number_format.AUTO
    with pytest.raises(SettingError, match="auto, float16, bfloat16, float32"):
        number_format.number_format("int8")


@given(
    st.dictionaries(st.sampled_from(list(DTYPES)), st.floats(1e-3, 1.0), min_size=1),
    st.booleans(),
)
def test_auto_is_never_much_slower_than_the_fastest(timings: dict[str, float], units: bool) -> None:
    """Bug: the preferred format is taken whatever it takes, or one that was not timed."""
    chosen = fastest(timings, units)
    assert timings[chosen] <= min(timings.values()) * 1.1**2


def test_a_tie_goes_to_the_format_that_the_processor_has_units_for() -> None:
    """Bug: noise of a few per cent makes a processor with bfloat16 units decode in float16, or one without in bfloat16
    or float32."""
    close = {"float16": 1.0, "bfloat16": 1.02, "float32": 0.99}
    assert fastest(close, bfloat16_units=True) == "bfloat16"
    assert fastest(close, bfloat16_units=False) == "float16"
    assert fastest({"float16": 1.0, "bfloat16": 1.5, "float32": 3.0}, bfloat16_units=True) == "float16"
    assert fastest({"float16": 1.0, "bfloat16": 3.0, "float32": 0.5}, bfloat16_units=False) == "float32"


def test_a_format_without_kernels_is_never_timed_and_never_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: bfloat16 on a processor that has no instructions for it."""
    monkeypatch.setattr(number_format, "_LAYERS", 1)
    monkeypatch.setattr(number_format, "_ROUNDS", 1)
    kernels_for(monkeypatch, "float32")
    assert set(time_formats()) == {"float32"}
    auto = number_format.number_format("auto")
    assert auto.name == "float32"
    assert auto.note.startswith("auto is float32 on ") and "float16 and bfloat16" in auto.note
    assert auto.note.count(".") == auto.note.count("the fastest here") == 1
    number_format._fastest.cache_clear()
    monkeypatch.setattr(number_format, "has_kernels", lambda dtype: False)
    assert number_format.number_format("auto").name == "float32"


def test_a_format_asked_for_by_name_is_used_with_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a refusal, or silence, where someone asks for a format that is slow here; a warning where it is not."""
    kernels_for(monkeypatch, "float32", "float16")
    assert number_format.number_format("float16") == number_format.NumberFormat("float16", "")
    slow = number_format.number_format("bfloat16")
    assert slow.name == "bfloat16" and "no fast kernels" in slow.note and slow.note.endswith("cannot pay.")
    kernels_for(monkeypatch, "float32", "bfloat16")
    assert "float32's speed" in number_format.number_format("float16").note


def test_the_timing_is_kept_and_made_again_for_another_machine(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a second of timing at every start; the timing of another processor, thread number or PyTorch is used; a
    damaged file ends with a traceback, or one of fewer formats hides a new one."""
    timed: list[int] = []

    def timing() -> dict[str, float]:
        timed.append(torch.get_num_threads())
        return dict.fromkeys(number_format._offered(), 1.0)

    monkeypatch.setattr(number_format, "time_formats", timing)

    def ask() -> int:
        number_format._fastest.cache_clear()
        number_format.number_format("auto")
        return len(timed)

    assert (ask(), ask()) == (1, 1)
    (kept,) = fresh.glob("number-formats-*.json")
    for damaged in ("", "[]", "{}", json.dumps({"seconds": {"float32": "x"}}), json.dumps({"seconds": {"int8": 1}})):
        before = len(timed)
        kept.write_text(damaged)
        assert (ask(), ask()) == (before + 1, before + 1), damaged
    before = len(timed)
    monkeypatch.setattr(number_format, "processor_name", lambda: "another")
    assert (ask(), ask()) == (before + 1, before + 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    assert (ask(), ask()) == (before + 2, before + 2)


def test_a_cache_that_cannot_be_written_does_not_stop_anyone(monkeypatch: pytest.MonkeyPatch, fresh: Path) -> None:
    """Bug: a read-only home ends with a traceback."""
    (fresh / "file").write_text("")
    monkeypatch.setenv("VOCABTRIM_CACHE", str(fresh / "file" / "below"))
    monkeypatch.setattr(number_format, "time_formats", lambda: {"float32": 1.0})
    assert number_format.number_format("auto").name == "float32"
