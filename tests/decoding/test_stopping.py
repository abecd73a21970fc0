"""Where a generation ends: end tokens and stop strings, wherever they lie in a block."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny_tokenizer import make_tiny_tokenizer
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.errors import SettingError
from vocabtrim_core.tokenization import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("stopping"))


def letters(ids: Sequence[int]) -> str:
    """One letter a token: 0 is a."""
    return "".join(chr(97 + i) for i in ids)


def one_by_one(stop: StopCondition, ids: list[int]) -> tuple[int, str | None]:
    """How many of `ids` are kept when they come one at a time, as vanilla decoding gives them."""
    for count in range(len(ids)):
        kept, why = stop.kept(ids[:count], ids[count : count + 1])
        assert kept == 1
        if why:
            return count + 1, why
    return len(ids), None


@given(
    ids=st.lists(st.integers(0, 3), max_size=16),
    cuts=st.lists(st.integers(1, 5), max_size=16),
    eos=st.sets(st.integers(0, 3), max_size=1),
    stops=st.lists(st.text("abcd", min_size=1, max_size=3), max_size=2),
)
def test_blocks_end_where_single_tokens_end(ids: list[int], cuts: list[int], eos: set[int], stops: list[str]) -> None:
    """Bug: in a block of accepted tokens the end is found later, or not at all (a stop string across two blocks)."""
    stop = StopCondition(frozenset(eos), tuple(stops), letters)
    expected = one_by_one(stop, ids)
    done, why = 0, None
    for cut in [*cuts, *[1] * len(ids)]:
        if why or done == len(ids):
            break
        kept, why = stop.kept(ids[:done], ids[done : done + cut])
        done += kept
    assert (done, why) == expected
    if why == "stop string":
        assert any(text in letters(ids[:done]) for text in stops)
        assert not any(text in letters(ids[: done - 1]) for text in stops)
    elif why is None:
        assert not any(text in letters(ids) for text in stops)


def test_an_end_token_goes_before_a_stop_string() -> None:
    """Bug: the reason shown depends on which is looked for first in the block, not on which comes first."""
    stop = StopCondition(frozenset([2]), ("d",), letters)
    assert stop.kept([], [0, 2, 3]) == (2, "eos")
    assert stop.kept([], [0, 3, 2]) == (2, "stop string")


def test_without_conditions_everything_is_kept() -> None:
    """Bug: no stop strings and no decoder is an error, or an empty block an end."""
    assert StopCondition(frozenset()).kept([1], [2, 3]) == (2, None)
    assert StopCondition(frozenset(), ("a",), letters).kept([1], []) == (0, None)


def test_a_stop_string_may_begin_inside_a_character_of_several_tokens(tokenizer: Tokenizer) -> None:
    """Bug: the decoded tail begins inside a character, or is too short for a string of many small tokens."""
    stop = StopCondition(frozenset(), ("→ 猫🐈 end",), tokenizer.decode)
    ids = tokenizer.encode_texts(["猫" * 30 + "→ 猫🐈 end and more"])[0]
    kept, why = one_by_one(stop, ids)
    assert why == "stop string"
    assert tokenizer.decode(ids[:kept]).endswith("→ 猫🐈 end")
    assert stop.kept([], ids) == (kept, why)


def test_an_empty_stop_string_is_refused() -> None:
    """Bug: an empty line in a list of stop strings ends every output after one token."""
    with pytest.raises(SettingError, match="empty"):
        StopCondition(frozenset(), ("END", ""), letters)


def test_text_is_cut_before_the_first_stop_string() -> None:
    """Bug: the last of several stop strings cuts; text without one is cut or lost."""
    stop = StopCondition(frozenset(), ("END", "\n\n"), letters)
    assert stop.trimmed("one END two\n\nthree END") == "one "
    assert stop.trimmed("one\n\ntwo END") == "one"
    assert stop.trimmed("one") == "one"
    assert StopCondition(frozenset()).trimmed("one") == "one"


def test_a_control_token_can_be_a_stop_string(tokenizer: Tokenizer) -> None:
    """Bug: control tokens vanish in the decoded text, so a stop string such as <|im_end|> never matches."""
    end = tokenizer.eos_ids[0]
    stop = StopCondition(frozenset(), ("<|im_end|>",), tokenizer.decode)
    assert stop.kept([5, 6], [7, end, 8]) == (2, "stop string")
