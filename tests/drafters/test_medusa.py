"""Medusa heads from public layouts: the maths against plain loops, which state they read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from drafters.checkpoints import VOCAB, WIDTH, medusa, save
from toys import causal_lm, decode, language_model, llama_config, tokens

from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.drafters.medusa import MedusaModel, static_tree
from vocabtrim_core.drafters.registry import load_added
from vocabtrim_core.errors import ModelError
from vocabtrim_core.passes import alone
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape

TARGET = language_model(causal_lm(0, llama_config(VOCAB)))
GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=0.8)
TREE = DraftShape(3, 3, 7)
TEXT = [5, 9, 20, 7, 33]
ORDER = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(3))


def load(folder: Path, tensors: dict, file: str = "medusa_lm_head.pt") -> MedusaModel:
    model = load_added(save(folder, tensors, None, file), "tiny-medusa", TARGET)
    assert isinstance(model, MedusaModel)
    return model


def states(text: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return TARGET.new_backbone().run(torch.tensor(text))


def plain_logits(tensors: dict[str, torch.Tensor], i: int, state: torch.Tensor) -> torch.Tensor:
    """Head i's logits over the vocabulary, with plain loops over its file."""
    x = state.double()
    j = 0
    while f"{i}.{j}.linear.weight" in tensors:
        inner = tensors[f"{i}.{j}.linear.weight"].double() @ x + tensors[f"{i}.{j}.linear.bias"].double()
        x = x + inner / (1 + (-inner).exp())
        j += 1
    return tensors.get(f"{i}.{j}.weight", TARGET.head.weight).double() @ x


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_head.pt", "model.safetensors"])
@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("own_heads", [True, False])
@pytest.mark.parametrize("shape", [DraftShape(3), TREE], ids=["chain", "tree"])
def test_the_maths(file: str, blocks: int, own_heads: bool, shape: DraftShape, tmp_path: Path) -> None:
    """Bug: a head reads the last token's state (and is one token late), the heads' order, a shared head for all."""
    tensors = medusa(3, blocks, own_heads)
    model = load(tmp_path, tensors, file)
    drafter = model.new_drafter(model.head.reordered(ORDER), k := 30)
    drafter.begin(torch.tensor(TEXT), states(TEXT))
    draft = alone(drafter.propose(shape, GREEDY, torch.Generator()))
    assert len(draft.ids) == (3 if shape.is_chain else 7)
    state = states(TEXT)[-2]  # head 0 guesses two tokens after it
    for node in range(len(draft.ids)):
        law = plain_logits(tensors, int(draft.tree.depths[node]), state)[ORDER[:k]].softmax(-1)
        rank = int(draft.ranks[node])
        assert int(draft.ids[node]) == int(ORDER[rank])
        assert float(draft.probs[node]) == pytest.approx(float(law[rank]), rel=1e-3, abs=1e-6)
    best = [int(plain_logits(tensors, i, state)[ORDER[:k]].argmax()) for i in range(3)]
    top = [node for node in range(len(draft.ids)) if int(draft.ranks[node]) in best]
    assert {int(draft.ranks[node]) for node in top} == set(best)


def test_a_settled_drafter_is_a_fresh_one(tmp_path: Path) -> None:
    """Bug: after accepted tokens the heads read the state before them."""
    model = load(tmp_path, medusa())
    drafter, text = model.new_drafter(), list(TEXT)
    drafter.begin(torch.tensor(text), states(text))
    for take in (2, 0, 3):
        draft = alone(drafter.propose(DraftShape(3), GREEDY, torch.Generator()))
        text += [*draft.ids[:take].tolist(), 11]
        drafter.settle(torch.arange(take), 11, states(text)[-take - 2 : -1])
        fresh = model.new_drafter()
        fresh.begin(torch.tensor(text), states(text))
        ours, theirs = (alone(one.propose(TREE, GREEDY, torch.Generator())) for one in (drafter, fresh))
        assert torch.equal(ours.ids, theirs.ids)


@pytest.mark.parametrize("own_heads", [True, False])
@pytest.mark.parametrize("tree", [None, TREE], ids=["chain", "tree"])
def test_greedy_text_is_the_targets(own_heads: bool, tree: DraftShape | None, tmp_path: Path) -> None:
    """Bug: a draft deeper than there are heads, or a prompt of one token, fails; the text changes."""
    model = load(tmp_path, medusa(2, own_heads=own_heads))
    settings = GenerationSettings(gamma=4, max_new_tokens=16, tree=tree)
    for prompt in ([7], TEXT):
        for k in (None, 9):
            drafter = model.new_drafter(model.head.reordered(ORDER), k)
            assert tokens(decode(TARGET, drafter, prompt, settings)) == tokens(decode(TARGET, None, prompt, settings))


def test_a_sampled_chain_tells_its_laws(tmp_path: Path) -> None:
    """Bug: all tokens drawn from one head's law, or laws that are not those drawn from."""
    tensors = medusa()
    drafter = load(tmp_path, tensors).new_drafter(k=20)
    drafter.begin(torch.tensor(TEXT), states(TEXT))
    draft = alone(drafter.propose(DraftShape(3), SAMPLED, torch.Generator().manual_seed(0)))
    assert draft.laws is not None
    for i in range(3):
        law = (plain_logits(tensors, i, states(TEXT)[-2])[:20] / 0.8).softmax(-1)
        torch.testing.assert_close(draft.laws[i].double(), law, rtol=1e-3, atol=1e-6)


def test_the_static_tree_is_full_without_a_number_of_nodes() -> None:
    """Bug: no limit makes an exponential tree, or one node."""
    tree, columns = static_tree(3, 2, None)
    assert len(tree) == len(columns) == 2 + 2 * 4


@pytest.mark.parametrize(
    "tensors, words",
    [
        ({name: t for name, t in medusa().items() if name != "1.0.linear.bias"}, r"incomplete.*1\.0\.linear\.bias"),
        ({name: t for name, t in medusa().items() if name != "2.1.weight"}, r"incomplete.*2\.1\.weight"),
        (medusa() | {"0.1.weight": torch.zeros(VOCAB + 5, WIDTH)}, "another target"),
        (medusa() | {"0.0.linear.weight": torch.zeros(WIDTH, 2 * WIDTH)}, "another target"),
        (medusa() | {"0.7.weight": torch.zeros(VOCAB, WIDTH)}, r"not supported: 0\.7\.weight"),
    ],
)
def test_what_does_not_fit_is_refused(tensors: dict, words: str, tmp_path: Path) -> None:
    """Bug: heads of another target, or half of them, are decoded with."""
    with pytest.raises(ModelError, match=words):
        load(tmp_path, tensors)


def test_a_file_with_more_than_tensors_is_not_run(tmp_path: Path) -> None:
    """Bug: a downloaded head runs a command when it is loaded."""
    trace = tmp_path / "trace"

    class Payload:
        def __reduce__(self) -> tuple:
            return Path.mkdir, (trace,)

    torch.save({"0.0.linear.weight": Payload()}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ModelError, match="something else than tensors"):
        load_added(tmp_path, "evil", TARGET)
    assert not trace.exists()
