from __future__ import annotations

import html
import re

import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizer import make_tiny_tokenizer

from pages.components.tree_view import Node, figure, nodes_of
from vocabtrim_core.decoding.engine import Cycle, CycleTimes
from vocabtrim_core.tokenization import Tokenizer

TIMES = CycleTimes(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
BEFORE = 3
# 0 and 1 are siblings, then 2, 3 and 4 below 1, and 5 below 0.
PARENTS = (-1, -1, 1, 1, 1, 0)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("trees") / "tokenizer")


def cycle(
    parents: tuple[int, ...], path: tuple[int, ...], own: str | None, outside: bool = False, first_id: int = 10
) -> Cycle:
    ids = tuple(range(first_id, first_id + len(parents)))
    drafted, wanted = tuple(0.01 * i for i in ids), tuple(0.001 * i for i in ids)
    emitted = (*(ids[node] for node in path), *([] if own is None else [99]))
    return Cycle(ids, parents, drafted, wanted, path, emitted, own, 0.5, outside, None, TIMES)  # type: ignore[arg-type]


def by_id(nodes: list[Node]) -> dict[int, Node]:
    return {node.token_id: node for node in nodes}


def texts(drawn: go.Figure) -> dict[str, list[str]]:
    """The labels of the tree by what the legend calls their marks."""
    return {trace.name: list(trace.text) for trace in drawn.data if trace.name}


@st.composite
def cycles(draw: st.DrawFn) -> Cycle:
    """Any tree, walked down to some node, and whatever the engine can say of it."""
    size = draw(st.integers(0, 24))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(size))
    path: list[int] = []
    node = -1
    while (children := [child for child, parent in enumerate(parents) if parent == node]) and draw(st.booleans()):
        node = draw(st.sampled_from(children))
        path.append(node)
    refused = node in parents
    own = draw(st.sampled_from([None, "correction" if refused else "bonus" if size else "vanilla"]))
    return cycle(parents, tuple(path), own, outside=own == "correction" and draw(st.booleans()), first_id=100)


@given(found=cycles())
def test_each_token_is_drawn_once_after_its_parent(found: Cycle) -> None:
    """Catches a drafted token that is lost, drawn twice, or drawn under another than the one it follows."""
    nodes = nodes_of(found, BEFORE)
    own = [] if found.own_token is None else [found.emitted_ids[-1]]
    assert sorted(node.token_id for node in nodes) == sorted([BEFORE, *found.drafted_ids, *own])
    place = by_id(nodes)
    for token, parent in zip(found.drafted_ids, found.parents, strict=True):
        above = nodes[place[token].parent]
        assert above.token_id == (BEFORE if parent < 0 else found.drafted_ids[parent])
        assert place[token].depth == above.depth + 1
    assert all(node.parent < row for row, node in enumerate(nodes))


@given(found=cycles())
def test_marked_tokens_are_those_emitted(found: Cycle) -> None:
    """Catches a highlighted path that is not what came out, as one along the first branch whatever was accepted."""
    standing = [node for node in nodes_of(found, BEFORE) if node.stands]
    assert [node.token_id for node in standing] == [BEFORE, *found.emitted_ids]
    assert [node.depth for node in standing] == list(range(len(standing)))


def test_what_became_of_each_token() -> None:
    """Catches a token called rejected that was never looked at, and the other way round."""
    found = by_id(nodes_of(cycle(PARENTS, (1, 3), "bonus"), BEFORE))
    fates = [found[token].fate for token in (10, 11, 12, 13, 14, 15, 99)]
    assert fates == ["rejected", "accepted", "rejected", "accepted", "discarded", "discarded", "bonus"]
    stopped = by_id(nodes_of(cycle(PARENTS, (1,), None), BEFORE))
    assert [stopped[token].fate for token in (12, 13, 14)] == ["discarded"] * 3
    assert 99 not in stopped


def test_own_token_stands_where_it_was_chosen() -> None:
    """Catches a correction on the wrong token, above those it replaces, or not marked as outside where it was."""
    nodes = nodes_of(cycle(PARENTS, (1,), "correction", outside=True), BEFORE)
    own = nodes[-1]
    assert (own.token_id, nodes[own.parent].token_id, own.depth) == (99, 11, 2)
    assert own.fate == "outside" and "do not include" in own.note
    assert own.draft_prob is None and own.target_prob == 0.5
    inside = nodes_of(cycle(PARENTS, (1,), "correction"), BEFORE)[-1]
    assert inside.fate == "correction" and "do not include" not in inside.note


def test_probabilities_stand_beside_their_token(tokenizer: Tokenizer) -> None:
    """Catches drafter and target swapped, or a column in the draft's order where the rows are in the tree's."""
    found = cycle(PARENTS, (1, 3), "bonus")
    nodes = nodes_of(found, BEFORE)
    drafter, target = (list(trace.x) for trace in figure(nodes, tokenizer).data if trace.type == "bar")
    for row, node in enumerate(nodes):
        if node.token_id in found.drafted_ids:
            place = found.drafted_ids.index(node.token_id)
            assert (drafter[row], target[row]) == (found.draft_probs[place], found.target_probs[place])


def test_tree_and_chain_are_drawn(tokenizer: Tokenizer) -> None:
    """Catches a figure without its marks, and one that fails for a chain, an empty draft, or an end in the draft."""
    shown = texts(figure(nodes_of(cycle(PARENTS, (1,), "correction", outside=True), BEFORE), tokenizer))
    assert {name: len(labels) for name, labels in shown.items()} == {
        "before the draft": 1,
        "accepted": 1,
        "rejected": 4,
        "discarded": 1,
        "correction from outside k": 1,
    }
    assert "∉" in shown["correction from outside k"][0] and "<s>" in shown["rejected"][0]
    chain = cycle((-1, 0, 1), (0,), "correction")
    assert set(texts(figure(nodes_of(chain, BEFORE), tokenizer))) >= {"accepted", "rejected", "correction"}
    for other in (cycle((), (), "vanilla"), cycle((-1, 0), (0,), None)):
        assert figure(nodes_of(other, BEFORE), tokenizer).data


def test_token_text_cannot_be_markup(tokenizer: Tokenizer) -> None:
    """Catches tokens that plotly reads as tags or entities, in the tree or in what is shown on pointing at them."""
    (ids,) = tokenizer.encode_texts(['<a href="http://x">&lt;</a>'])
    size = len(ids)
    found = Cycle(
        tuple(ids),
        tuple(range(-1, size - 1)),
        (0.5,) * size,
        (0.0001,) * size,
        (),
        (1,),
        None,
        None,
        False,
        None,
        TIMES,
    )
    drawn = figure(nodes_of(found, ids[0]), tokenizer)
    for trace in drawn.data:
        for label in [*(trace.text or ()), *(trace.hovertext or ())]:
            assert set(re.findall(r"<[^>]*>?", label)) <= {"<b>", "</b>", "<s>", "</s>", "<br>"}
            assert not re.search(r"&(?!lt;|gt;|amp;)", label)
    spelled = "".join(re.sub(r"<[^>]*>|^ +(× )?", "", label) for trace in drawn.data[2:-2] for label in trace.text)
    assert "<" in html.unescape(spelled) and "&" in html.unescape(spelled)


def test_space_and_bytes_can_be_read(tokenizer: Tokenizer) -> None:
    """Catches nodes without a visible name: white space, line breaks, halves of characters."""
    (ids,) = tokenizer.encode_texts([" \n猫"])
    found = Cycle(
        tuple(ids),
        (-1,) * len(ids),
        (0.5,) * len(ids),
        (0.5,) * len(ids),
        (),
        (1,),
        "correction",
        0.5,
        False,
        None,
        TIMES,
    )
    labels = " ".join(texts(figure(nodes_of(found, ids[0]), tokenizer))["rejected"])
    assert "·" in labels and "↵" in labels and "⟨E7" in labels and "\ufffd" not in labels
