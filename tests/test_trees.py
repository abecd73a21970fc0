"""Draft trees: their masks, how they grow and what they keep, against definitions written out token by token."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vocabtrim_core.errors import SettingError
from vocabtrim_core.trees import DraftShape, GrowingTree, TokenTree, product_tree, top_children


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    parents = [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 12)))]
    return TokenTree(torch.tensor(parents, dtype=torch.int64))


def path(parents: list[int], node: int) -> list[int]:
    return [*path(parents, parents[node]), node] if node >= 0 else []


@given(trees())
def test_a_token_sees_itself_and_its_path(tree: TokenTree) -> None:
    """Bug: a mask that shows siblings, or hides an ancestor further up; a depth one off."""
    parents = tree.parents.tolist()
    for node in range(len(tree)):
        assert tree.path_to(node).tolist() == path(parents, node)
        assert tree.visible[node].nonzero()[:, 0].tolist() == path(parents, node)
        assert tree.depths[node] == len(path(parents, node)) - 1
    for node in (*range(len(tree)), -1):
        assert list(tree.children[node]) == [child for child, parent in enumerate(parents) if parent == node]
    assert tree.is_chain == (parents == list(range(-1, len(tree) - 1)))


@given(trees())
def test_one_token_more_at_the_top(tree: TokenTree) -> None:
    """Bug: the token before the draft is not seen by all of it, or the draft's own order changes."""
    below = tree.below
    assert below.parents.tolist() == [-1, *(parent + 1 for parent in tree.parents.tolist())]
    assert bool(below.visible[:, 0].all()) and torch.equal(below.visible[1:, 1:], tree.visible)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_a_chain(n: int) -> None:
    """Bug: a chain that is treated as a tree, and so pays for a mask."""
    chain = TokenTree.chain(n)
    assert len(chain) == n and chain.is_chain and chain.below.is_chain
    assert chain.visible.tolist() == [[column <= row for column in range(n)] for row in range(n)]
    assert chain.depths.tolist() == list(range(n))


def test_shapes_out_of_range_are_refused() -> None:
    """Bug: a tree of no nodes, or of more than fit, fails inside torch; a limit that cuts branches with the depth."""
    for depth, branches, nodes in [(0, 1, None), (33, 1, None), (3, 0, None), (3, 65, None), (3, 2, 0), (3, 2, 257)]:
        with pytest.raises(SettingError):
            DraftShape(depth, branches, nodes)
    shape = DraftShape(5, 4, 20)
    assert shape.at_most(5) is shape and shape.at_most(2) == DraftShape(2, 4, 20)
    assert DraftShape(5).is_chain and not shape.is_chain


# Growing


def next_logits(text: tuple[int, ...], k: int) -> torch.Tensor:
    """Some law of what follows a text, [k]."""
    generator = torch.Generator().manual_seed(hash(text) % 2**32)
    return 2 * torch.randn(k, generator=generator, dtype=torch.float64)


def grown(shape: DraftShape, k: int, temperature: float = 1.0) -> tuple[list[tuple[int, ...]], list[float]]:
    """The paths, as ranks, of the tree that grows from `next_logits`, and each node's probability."""
    growing = GrowingTree(shape)
    texts: list[tuple[int, ...]] = [()]
    for _ in range(shape.depth):
        logits = torch.stack([next_logits(text, k) for text in texts])
        ranks, rows = growing.grow(*top_children(logits, shape.branches, temperature))
        texts = [(*texts[row], rank) for row, rank in zip(rows.tolist(), ranks.tolist(), strict=True)]
    tree, drafted, probs, _ = growing.finish()
    paths = [tuple(drafted[tree.path_to(node)].tolist()) for node in range(len(tree))]
    return paths, probs.tolist()


def expected_nodes(shape: DraftShape, k: int, temperature: float) -> dict[tuple[int, ...], float]:
    """Every node that grows, with the probability of its path, as EAGLE-2 says."""
    everything: dict[tuple[int, ...], float] = {}
    level = {(): 1.0}
    for _ in range(shape.depth):
        following = {}
        for text, total in level.items():
            law = (next_logits(text, k) / temperature).softmax(-1)
            best = law.argsort(descending=True)[: shape.branches].tolist()
            following |= {(*text, rank): total * float(law[rank]) for rank in best}
        everything |= following
        level = dict(sorted(following.items(), key=lambda item: -item[1])[: shape.branches])
    return everything


@given(
    depth=st.integers(1, 5),
    branches=st.integers(1, 6),
    nodes=st.one_of(st.none(), st.integers(1, 40)),
    k=st.integers(1, 9),
    temperature=st.sampled_from([0.0, 0.5, 1.7]),
)
def test_a_dynamic_tree_is_the_best_connected_part(
    depth: int, branches: int, nodes: int | None, k: int, temperature: float
) -> None:
    """Bug: a level that grows from other nodes than the most probable; a re-ranking that leaves nodes without their
    parents or keeps too many; products along the wrong path; siblings out of order; a temperature that is ignored."""
    shape = DraftShape(depth, branches, nodes)
    paths, probs = grown(shape, k, temperature)
    everything = expected_nodes(shape, k, temperature or 1.0)
    best = sorted(everything, key=lambda text: -everything[text])[:nodes]
    assert set(paths) == set(best) and len(paths) == len(best)
    assert all(len(text) == 1 or text[:-1] in paths[:place] for place, text in enumerate(paths))
    for text, prob in zip(paths, probs, strict=True):
        assert prob == pytest.approx(everything[text] / everything.get(text[:-1], 1.0), rel=1e-4)
    for _, siblings in itertools.groupby(
        sorted(range(len(paths)), key=lambda i: (paths[i][:-1], i)), lambda i: paths[i][:-1]
    ):
        among = [probs[i] for i in siblings]
        assert among == sorted(among, reverse=True)


def test_certain_tokens_stay_connected() -> None:
    """Bug: where a child is as probable as its parent, the parent is the one that is left out."""
    growing = GrowingTree(DraftShape(4, 2, 4))
    for _ in range(4):
        m = len(growing.frontier)
        growing.grow(torch.tensor([[0.0, -torch.inf]]).expand(m, -1), torch.tensor([[0, 1]]).expand(m, -1))
    tree, ranks, probs, _ = growing.finish()
    assert tree.is_chain and ranks.tolist() == [0] * 4 and probs.tolist() == [1.0] * 4


@given(
    rates=st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=4), min_size=1, max_size=4), nodes=st.integers(1, 30)
)
def test_a_static_tree_has_the_largest_products(rates: list[list[float]], nodes: int) -> None:
    """Bug: Medusa's tree misses a likely path, or has a node twice or without its parent."""
    rates = [sorted(row, reverse=True) for row in rates]
    tree, columns = product_tree(rates, nodes)
    paths = [tuple(columns[tree.path_to(node)].tolist()) for node in range(len(tree))]
    everything = {}
    for depth in range(1, len(rates) + 1):
        for text in itertools.product(*(range(len(row)) for row in rates[:depth])):
            product = 1.0
            for row, column in zip(rates, text, strict=False):
                product *= row[column]
            everything[text] = product
    best = sorted(everything.values(), reverse=True)[:nodes]
    assert len(set(paths)) == len(paths) == len(best)
    assert sorted((everything[text] for text in paths), reverse=True) == pytest.approx(best)
    assert all(len(text) == 1 or text[:-1] in paths[:place] for place, text in enumerate(paths))
    assert all(text[-1] == 0 or (*text[:-1], text[-1] - 1) in paths[:place] for place, text in enumerate(paths))


@given(seed=st.integers(0, 1000), branches=st.integers(1, 9), temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]))
def test_top_children_are_the_most_probable_tokens(seed: int, branches: int, temperature: float) -> None:
    """Bug: probabilities over the chosen tokens only, or without the temperature; computed in half precision."""
    logits = 3 * torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
    log_probs, ranks = top_children(logits, branches, temperature)
    law = (logits / (temperature or 1.0)).log_softmax(-1)
    best, where = law.sort(descending=True)
    torch.testing.assert_close(log_probs, best[:, :branches])
    assert torch.equal(ranks, where[:, :branches])
    assert top_children(logits.bfloat16(), branches)[0].dtype == torch.float32


@pytest.mark.parametrize("shape", [DraftShape(1, 3), DraftShape(3, 2), DraftShape(4, 4, 16), DraftShape(2, 3, 200)])
def test_a_full_tree_has_as_many_nodes_as_its_shape_allows(shape: DraftShape) -> None:
    """Bug: a draft with more tokens than rows were fixed for, or rows computed for tokens that never come."""
    growing = GrowingTree(shape)
    for _ in range(shape.depth):
        logits = torch.randn(len(growing.frontier), 50)
        growing.grow(*top_children(logits, shape.branches))
    assert len(growing.finish()[0]) == shape.most_nodes
    assert DraftShape(5).most_nodes == 5
