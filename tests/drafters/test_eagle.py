"""EAGLE drafters from public layouts: the maths against plain loops, and drafts that follow what became of the last."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.checkpoints import HEAD_DIM, HEADS, KV_HEADS, LAYERS, VOCAB, WIDTH, config, eagle1, eagle3, save
from toys import causal_lm, decode, language_model, llama_config, tokens

from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.drafters.eagle import EagleModel
from vocabtrim_core.drafters.registry import load_added
from vocabtrim_core.errors import ModelError
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.passes import alone
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape

TARGET = language_model(causal_lm(0, llama_config(VOCAB, LAYERS)))
KEPT = torch.tensor([0, 3, 4, 7, 9, 11, 12, 20, 21, 30, 33, 39])
GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=0.8)
TREE = DraftShape(3, 3, 8)
TEXT = [5, 9, 20, 7, 33, 1, 12]

LAYOUTS: dict[str, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {
    "EAGLE-1": (eagle1(), config()),
    "EAGLE-1, no bias, target's embeddings": (eagle1(bias=False, embeddings=False), config()),
    "EAGLE-3": (eagle3(), config()),
    "EAGLE-3, norm before residual": (eagle3(), config(norm_before_residual=True)),
    "EAGLE-3, layers.0 and d2t": (eagle3("layers.0", KEPT), config(draft_vocab_size=len(KEPT))),
    "EAGLE-3, taps of speculators": (eagle3(), config(eagle_aux_hidden_state_layer_ids=[1, 3, 6])),
    "EAGLE-3, taps of SGLang": (
        eagle3(),
        config(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 2, 5], "use_aux_hidden_state": True}),
    ),
}
TAPS = {"EAGLE-3, taps of speculators": (1, 3, 6), "EAGLE-3, taps of SGLang": (1, 3, 6)}


def load(folder: Path, tensors: dict, settings: dict | None, target: LanguageModel = TARGET) -> EagleModel:
    model = load_added(save(folder, tensors, settings), "tiny-eagle", target)
    assert isinstance(model, EagleModel)
    return model


def target_states(text: Sequence[int], taps: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode():
        return TARGET.new_backbone(taps).run(torch.tensor(text))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


class Plain:
    """The drafter again, slot by slot and head by head, from the tensors of its file alone."""

    def __init__(self, tensors: dict[str, torch.Tensor], settings: dict[str, Any], taps: tuple[int, ...]) -> None:
        self.of = {name.replace("layers.0.", "midlayer."): tensor.double() for name, tensor in tensors.items()}
        self.third = "midlayer.hidden_norm.weight" in self.of
        self.before = settings.get("norm_before_residual", False)
        self.taps = taps
        shared = TARGET.body.get_input_embeddings().weight
        self.embeddings = self.of.get("embed_tokens.weight", shared.double())

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self.of[name] * x / math.sqrt(float((x * x).mean()) + 1e-5)

    def features(self, text: Sequence[int]) -> list[torch.Tensor]:
        """The target's, of every token: final states, or three layers' inputs through fc."""
        with torch.inference_mode():
            out = TARGET.body(input_ids=torch.tensor([list(text)]), output_hidden_states=True, use_cache=False)
        if not self.third:
            return list(out.last_hidden_state[0].double())
        layers = [out.hidden_states[tap][0].double() for tap in self.taps]
        return [self.of["fc.weight"] @ torch.cat([one[i] for one in layers]) for i in range(len(text))]

    def turned(self, x: torch.Tensor, position: int) -> torch.Tensor:
        out = x.clone()
        for i in range(HEAD_DIM // 2):
            angle = position / 10000 ** (2 * i / HEAD_DIM)
            a, b = float(x[i]), float(x[i + HEAD_DIM // 2])
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + HEAD_DIM // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    def slot(self, token: int, feature: torch.Tensor, position: int, seen: list) -> tuple[torch.Tensor, tuple]:
        """The output of one slot, which sees those in `seen` (their keys and values) and itself."""
        embedding = self.embeddings[token]
        if self.third:
            normed = self.norm("midlayer.hidden_norm.weight", feature)
            inputs = torch.cat([self.norm("midlayer.input_layernorm.weight", embedding), normed])
            residual = normed if self.before else feature
        else:
            inputs = residual = self.of["fc.weight"] @ torch.cat([embedding, feature]) + self.of.get("fc.bias", 0)
        split = {
            part: (self.of[f"midlayer.self_attn.{part}_proj.weight"] @ inputs).split(HEAD_DIM)
            for part in ("q", "k", "v")
        }
        keys = [self.turned(key, position) for key in split["k"]]
        mine = (keys, split["v"])
        mixed = []
        for head, query in enumerate(split["q"]):
            group = head // (HEADS // KV_HEADS)
            turned = self.turned(query, position)
            scores = torch.stack([turned @ k[group] / math.sqrt(HEAD_DIM) for k, _ in [*seen, mine]])
            values = torch.stack([v[group] for _, v in [*seen, mine]])
            mixed.append(scores.softmax(0) @ values)
        hidden = residual + self.of["midlayer.self_attn.o_proj.weight"] @ torch.cat(mixed)
        normed = self.norm("midlayer.post_attention_layernorm.weight", hidden)
        gate = self.of["midlayer.mlp.gate_proj.weight"] @ normed
        inner = gate / (1 + (-gate).exp()) * (self.of["midlayer.mlp.up_proj.weight"] @ normed)
        return hidden + self.of["midlayer.mlp.down_proj.weight"] @ inner, mine

    def logits(self, output: torch.Tensor) -> torch.Tensor:
        """Of the head's rows."""
        if self.third:
            return self.of["lm_head.weight"] @ self.norm("norm.weight", output)
        return TARGET.head.weight.double() @ output

    def after(self, text: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """Logits of what follows the text and a drafted path, which is fed with the layer's own outputs."""
        features, seen = self.features(text), []
        output = features[0]
        for i, token in enumerate(text[1:]):
            output, mine = self.slot(token, features[i], i, seen)
            seen.append(mine)
        for i, token in enumerate(drafted):
            output, mine = self.slot(token, output, len(text) - 1 + i, seen)
            seen.append(mine)
        return self.logits(output)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [DraftShape(3), TREE], ids=["chain", "tree"])
def test_the_maths_of_each_layout(layout: str, shape: DraftShape, tmp_path: Path) -> None:
    """Bug: fc's halves swapped, a norm forgotten, the wrong residual or taps, a position one off, a sibling seen."""
    tensors, settings = LAYOUTS[layout]
    model = load(tmp_path, tensors, settings)
    expected = TAPS.get(layout, (2, 4, 5)) if "EAGLE-3" in layout else ()
    assert model.taps == expected
    own = model.head.ranking  # of the rows in the file
    order = torch.randperm(len(own), generator=torch.Generator().manual_seed(3))
    k = len(own) - 3
    drafter = model.new_drafter(model.head.reordered(own[order]), k)
    drafter.begin(torch.tensor(TEXT), target_states(TEXT, model.taps))
    draft = alone(drafter.propose(shape, GREEDY, generator()))
    assert len(draft.ids) == (3 if shape.is_chain else 8)
    plain = Plain(tensors, settings, expected)
    for node in range(len(draft.ids)):
        path = draft.ids[draft.tree.path_to(node)].tolist()
        law = plain.after(TEXT, path[:-1])[order[:k]].softmax(-1)
        rank = int(draft.ranks[node])
        assert path[-1] == int(own[order[rank]])
        assert float(draft.probs[node]) == pytest.approx(float(law[rank]), rel=1e-3, abs=1e-6)
        if shape.is_chain:
            assert rank == int(law.argmax())


@pytest.mark.parametrize("layout", ["EAGLE-1", "EAGLE-3", "EAGLE-3, layers.0 and d2t"])
@pytest.mark.parametrize("shape", [DraftShape(4), TREE], ids=["chain", "tree"])
def test_a_settled_drafter_is_a_fresh_one(layout: str, shape: DraftShape, tmp_path: Path) -> None:
    """Bug: slots of refused tokens stay in the cache; accepted ones keep the layer's own features; the wrong states."""
    model = load(tmp_path, *LAYOUTS[layout])
    drafter, text = model.new_drafter(), list(TEXT)
    drafter.begin(torch.tensor(text), target_states(text, model.taps))
    for take in (1, 0, 9, 2, 0):
        draft = alone(drafter.propose(shape, GREEDY, generator()))
        deepest = int(draft.tree.depths.argmax())
        path = draft.tree.path_to(deepest)[:take]
        states_from = len(text) - 1
        text += [*draft.ids[path].tolist(), 17]
        states = target_states(text, model.taps)[states_from : states_from + len(path) + 1]
        drafter.settle(path, 17, states)
    # A cycle without a draft settles, too.
    text.append(4)
    drafter.settle(torch.empty(0, dtype=torch.int64), 4, target_states(text, model.taps)[-2:-1])
    fresh = model.new_drafter()
    fresh.begin(torch.tensor(text), target_states(text, model.taps))
    ours, theirs = (alone(one.propose(shape, GREEDY, generator())) for one in (drafter, fresh))
    assert torch.equal(ours.ids, theirs.ids) and torch.equal(ours.tree.parents, theirs.tree.parents)
    torch.testing.assert_close(ours.probs, theirs.probs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tree", [None, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("k", [None, 8])
def test_greedy_text_is_the_targets(layout: str, tree: DraftShape | None, k: int | None, tmp_path: Path) -> None:
    """Bug: tapped states given to the head; a prompt of one token, which leaves nothing to draft from, fails."""
    model = load(tmp_path, *LAYOUTS[layout])
    settings = GenerationSettings(gamma=3, max_new_tokens=20, tree=tree)
    for prompt in ([7], TEXT):
        drafter = model.new_drafter(model.head, k)
        assert tokens(decode(TARGET, drafter, prompt, settings)) == tokens(decode(TARGET, None, prompt, settings))


def test_a_sampled_chain_tells_its_laws(tmp_path: Path) -> None:
    """Bug: laws over the drafter's own rows, unwarped, or not those that were drawn from."""
    tensors, settings = LAYOUTS["EAGLE-3, layers.0 and d2t"]
    model = load(tmp_path, tensors, settings)
    drafter = model.new_drafter(k=9)
    drafter.begin(torch.tensor(TEXT), target_states(TEXT, model.taps))
    draft = alone(drafter.propose(DraftShape(3), SAMPLED, generator()))
    plain = Plain(tensors, settings, model.taps)
    assert draft.laws is not None and torch.equal(draft.ids, KEPT[draft.ranks])
    for i in range(3):
        law = (plain.after(TEXT, draft.ids[:i].tolist())[:9] / 0.8).softmax(-1)
        torch.testing.assert_close(draft.laws[i].double(), law, rtol=1e-3, atol=1e-6)


def test_bfloat16_drafts(tmp_path: Path) -> None:
    """Bug: a table of rotary angles or a mask in float32 makes bf16 fail."""
    target = language_model(causal_lm(0, llama_config(VOCAB, LAYERS), torch.bfloat16))
    model = load(tmp_path, *LAYOUTS["EAGLE-3"], target=target)
    for tree in (None, TREE):
        settings = GenerationSettings(gamma=3, max_new_tokens=12, tree=tree)
        assert len(tokens(decode(target, model.new_drafter(), TEXT, settings))) == 12


def test_float16_drafts(tmp_path: Path) -> None:
    """Bug: own embeddings, norms or biases in float16 meet float32 activations, and drafting fails; the layer's
    matrices are left in float32; the fused states are rounded."""
    model = causal_lm(0, llama_config(VOCAB, LAYERS))
    for parameter in model.parameters():
        parameter.copy_(parameter.half())
    plain = language_model(model)
    target = replace(plain, head=replace(plain.head, weight=plain.head.weight.half()))
    for layout in LAYOUTS:
        folder = tmp_path / layout
        folder.mkdir()
        drafter = load(folder, *LAYOUTS[layout], target=target)
        assert drafter.network.fc.weight.dtype == torch.float16
        for tree in (None, TREE):
            settings = GenerationSettings(gamma=3, max_new_tokens=12, tree=tree)
            expected = tokens(decode(target, None, TEXT, settings))
            assert tokens(decode(target, drafter.new_drafter(), TEXT, settings)) == expected


def test_a_long_text_outgrows_the_cache(tmp_path: Path) -> None:
    """Bug: keys are lost, or rotary positions end, where the cache is enlarged in the middle of a text."""
    model = load(tmp_path, *LAYOUTS["EAGLE-1"])
    text = torch.randint(VOCAB, (253,), generator=generator()).tolist()
    drafter = model.new_drafter()
    drafter.begin(torch.tensor(text[:-4]), target_states(text[:-4], ()))
    for i in range(4):
        alone(drafter.propose(DraftShape(6), GREEDY, generator()))
        drafter.settle(torch.empty(0, dtype=torch.int64), text[249 + i], target_states(text[: 249 + i], ())[-1:])
    fresh = model.new_drafter()
    fresh.begin(torch.tensor(text), target_states(text, ()))
    ours, theirs = (alone(one.propose(DraftShape(6), GREEDY, generator())) for one in (drafter, fresh))
    assert torch.equal(ours.ids, theirs.ids)


def without(tensors: dict[str, torch.Tensor], *names: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


def eagle3_with(d2t: torch.Tensor) -> dict[str, torch.Tensor]:
    """A head with a row for each entry, and no t2d."""
    return without(eagle3(kept=torch.arange(d2t.shape[-1])), "t2d") | {"d2t": d2t}


MISTAKES: dict[str, tuple[dict, dict | None, str]] = {
    "no config": (eagle3(), None, r"no config\.json that says"),
    "missing part": (without(eagle3(), "midlayer.mlp.up_proj.weight"), config(), "incomplete.*up_proj"),
    "second layer": (
        eagle3() | {"layers.1.self_attn.q_proj.weight": torch.ones(2, 2)},
        config(),
        "not supported: layers.1",
    ),
    "other width": (
        eagle1() | {"fc.weight": torch.zeros(2 * WIDTH, 4 * WIDTH)},
        config(hidden_size=2 * WIDTH),
        f"expects width {2 * WIDTH}",
    ),
    "other vocabulary": (eagle3(), config(vocab_size=VOCAB + 8), "expects 48 tokens"),
    "two taps": (eagle3(), config(eagle_aux_hidden_state_layer_ids=[1, 2]), "2 of its layers"),
    "tap beyond": (eagle3(), config(eagle_aux_hidden_state_layer_ids=[1, 2, 90]), "expects layers 1, 2, 90"),
    "d2t twice": (eagle3_with(-torch.arange(len(KEPT))), config(), "same token"),
    "d2t beyond": (eagle3_with(torch.full((len(KEPT),), VOCAB)), config(), "outside the vocabulary"),
    "d2t missing": (without(eagle3(kept=KEPT), "d2t", "t2d"), config(), "neither d2t nor t2d says"),
    "d2t and t2d": (
        eagle3(kept=KEPT) | {"t2d": torch.isin(torch.arange(VOCAB), torch.arange(len(KEPT)))},
        config(),
        "do not say the same",
    ),
    "t2d of all": (
        eagle3(kept=KEPT) | {"t2d": torch.ones(VOCAB, dtype=torch.bool)},
        config(),
        f"{len(KEPT)} rows, and t2d marks {VOCAB}",
    ),
    "ids beside t2d": (eagle3(kept=KEPT) | {"d2t": KEPT}, config(), "holds token ids"),
    "ids": (eagle3_with(KEPT), config(), "holds token ids"),
    "ids in another order": (eagle3_with(KEPT.flip(0)), config(), "holds token ids"),
    "zeros": (eagle3_with(torch.zeros_like(KEPT)), config(), "all zeros"),
    "arange": (eagle3_with(torch.arange(len(KEPT))), config(), "could be offsets"),
    "ids or offsets": (eagle3_with(torch.tensor([2, 3, 5, 7])), config(), "could be offsets.*or the token ids"),
    "bfloat16": (eagle3_with((KEPT - torch.arange(len(KEPT))).bfloat16()), config(), "d2t is bfloat16, which rounds"),
    "d2t of another shape": (eagle3_with(KEPT[None]), config(), r"d2t the shape \(1, "),
    "stated size": (eagle3(kept=KEPT), config(draft_vocab_size=9), "draft_vocab_size of 9"),
    "d2t alone": (without(eagle3(kept=KEPT), "lm_head.weight"), config(), "but no head"),
    "heads": (eagle3(), config(num_attention_heads=3), "makes no sense|does not fit"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_does_not_fit_is_refused(mistake: str, tmp_path: Path) -> None:
    """Bug: a drafter of another target, or a damaged one, drafts noise or fails deep inside a matmul."""
    tensors, settings, words = MISTAKES[mistake]
    with pytest.raises(ModelError, match=words):
        load(tmp_path, tensors, settings)


@pytest.mark.parametrize("form", ["offsets alone", "by frequency", "t2d alone", "bfloat16 beside t2d", "int32"])
def test_the_rows_of_a_trimmed_head_are_known_by_what_there_is(form: str, tmp_path: Path) -> None:
    """Bug: rows taken for the first ids where t2d says which they are; offsets of unsorted ids refused."""
    tensors, kept = eagle3(kept=KEPT), KEPT
    if form == "by frequency":
        kept = KEPT.flip(0)
        tensors["d2t"] = kept - torch.arange(len(kept))
    elif form == "bfloat16 beside t2d":
        tensors |= {"d2t": tensors["d2t"].bfloat16(), "t2d": tensors["t2d"].bfloat16()}
    elif form == "int32":
        tensors["d2t"] = tensors["d2t"].int()
    missing = {"t2d alone": ("d2t",), "offsets alone": ("t2d",), "by frequency": ("t2d",)}.get(form, ())
    assert torch.equal(load(tmp_path, without(tensors, *missing), config()).head.ranking, kept)


def test_speculators_naming(tmp_path: Path) -> None:
    """Bug: the layer's configuration, one level down, and the other default of norm_before_residual are not seen."""
    outer = {"speculators_model_type": "eagle3", "transformer_layer_config": config(), "draft_vocab_size": VOCAB}
    model = load(tmp_path, eagle3("layers.0"), outer)
    assert model.network.norm_before_residual
    (tmp_path / "model.safetensors").unlink()
    first = {
        name.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): tensor
        for name, tensor in eagle1().items()
    }
    assert load(tmp_path, first, {"speculators_model_type": "eagle", "transformer_layer_config": config()}).taps == ()


def test_bin_files_and_left_overs(tmp_path: Path) -> None:
    """Bug: EAGLE's own releases (pytorch_model.bin, rotary tables inside) are not read."""
    tensors = eagle1() | {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    model = load_added(save(tmp_path, tensors, config(), "pytorch_model.bin"), "tiny", TARGET)
    assert isinstance(model, EagleModel)
