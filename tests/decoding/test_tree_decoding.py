"""Decoding with draft trees: the target's own output, whatever the tree, and an honest record of each cycle."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma2Config, Lfm2Config, MambaConfig, MistralConfig

from tests.chi_square import p_value, pair_counts
from tests.toys import MarkovModel, causal_lm, decode, disturbed, drafter_of, language_model, llama_config, tokens
from vocabtrim_core.decoding.engine import Cycle, GenerationSettings, generate
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.drafters.independent import IndependentDrafter
from vocabtrim_core.errors import ModelError, SettingError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.sampling import SamplingSettings, law
from vocabtrim_core.trees import DraftShape

VOCAB = 32
PROMPT = [5, 6, 7, 8]
RANKING = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))
# In float64, where a tree's pass and one token's give the same logits up to 1e-15: no near-ties.
EXACT_LM = causal_lm(0, llama_config(VOCAB), torch.float64)
EXACT = language_model(EXACT_LM)
EXACT_DRAFTER = language_model(disturbed(EXACT_LM, 0.15))
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.3, "max_position_embeddings": 128, "pad_token_id": 0,
}  # fmt: skip
SHAPES = st.builds(
    DraftShape, st.integers(1, 6), st.sampled_from([2, 3, 5, 32]), st.one_of(st.none(), st.integers(1, 40))
)


def check_record(cycles: list[Cycle], shape: DraftShape, kept: set[int]) -> None:
    """What holds for the record of every generation with a drafter."""
    for number, cycle in enumerate(cycles):
        drafted, emitted, path = cycle.drafted_ids, cycle.emitted_ids, cycle.path
        assert len(cycle.parents) == len(cycle.draft_probs) == len(cycle.target_probs) == len(drafted)
        assert all(-1 <= parent < node for node, parent in enumerate(cycle.parents))
        assert cycle.accepted == len(path) <= cycle.depth <= shape.depth
        assert shape.nodes is None or len(drafted) <= shape.nodes
        assert all(0 <= prob <= 1 + 1e-6 for prob in (*cycle.draft_probs, *cycle.target_probs))
        assert set(drafted) <= kept
        assert [cycle.parents[node] for node in path] == [-1, *path][: len(path)]
        assert emitted[: len(path)] == tuple(drafted[node] for node in path)
        assert len(emitted) == len(path) + (cycle.own_token is not None)
        assert (cycle.finish is not None) == (number == len(cycles) - 1)
        assert (cycle.own_token is None) == (cycle.next_prob is None)
        after = [node for node, parent in enumerate(cycle.parents) if parent == (path[-1] if path else -1)]
        if cycle.own_token is None:
            assert cycle.finish in ("eos", "stop string")
        else:
            assert cycle.own_token == ("correction" if after else "bonus" if drafted else "vanilla")
            assert emitted[-1] not in [drafted[node] for node in after]
        assert cycle.out_of_vocabulary == (cycle.own_token == "correction" and emitted[-1] not in kept)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 50),
    noise=st.sampled_from([0.0, 0.05, 0.15, 0.5]),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    k=st.integers(2, VOCAB),
    shape=SHAPES,
    eos=st.sets(st.integers(0, VOCAB - 1), max_size=2),
    new_tokens=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_greedy_output_is_the_targets_for_any_pair_and_tree(
    seed: int,
    noise: float,
    prompt: list[int],
    k: int,
    shape: DraftShape,
    eos: set[int],
    new_tokens: int,
    dtype: torch.dtype,
) -> None:
    """Bug: anything that lets a tree change the target's text: a token that sees a sibling, the wrong branch left in
    either cache, an end token on an accepted path, a length that ends inside a tree."""
    model = causal_lm(seed, llama_config(VOCAB, layers=1), dtype)
    target, drafting = language_model(model), language_model(disturbed(model, noise))
    how, stop = GenerationSettings(max_new_tokens=new_tokens, tree=shape), StopCondition(frozenset(eos))
    vanilla = decode(target, None, prompt, how, stop)
    cycles = decode(target, drafter_of(drafting, RANKING, k), prompt, how, stop)
    assert tokens(cycles) == tokens(vanilla)
    assert cycles[-1].finish == vanilla[-1].finish
    check_record(cycles, shape, set(RANKING[:k].tolist()))


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SMALL, head_dim=8, sliding_window=8),
        Gemma2Config(**SMALL, head_dim=8, sliding_window=8, final_logit_softcapping=5.0),
    ],
    ids=["mistral", "gemma2"],
)
def test_greedy_output_is_the_same_past_a_sliding_window(config: MistralConfig | Gemma2Config) -> None:
    """Bug: a tree's mask without the window, or one mask for both kinds of layers."""
    model = causal_lm(2, config, torch.float64)
    target, drafting = language_model(model), language_model(disturbed(model, 0.1))
    vanilla = decode(target, None, PROMPT, GenerationSettings(max_new_tokens=60))
    for shape in (DraftShape(3, 3, 10), DraftShape(6, 4, 30)):
        cycles = decode(target, drafter_of(drafting, RANKING, 20), PROMPT, GenerationSettings(1, 60, tree=shape))
        assert tokens(cycles) == tokens(vanilla)
        assert len(cycles) < 60


def test_a_tree_accepts_more_than_its_chain() -> None:
    """Bug: a tree whose branches are never taken, so that it only costs; a whole path without its bonus token."""
    lengths = {}
    for shape in (DraftShape(4), DraftShape(4, 4, 24), DraftShape(4, 16, 200)):
        cycles = decode(
            EXACT, drafter_of(EXACT_DRAFTER, RANKING, VOCAB), PROMPT, GenerationSettings(1, 200, tree=shape)
        )
        lengths[shape.branches] = 200 / len(cycles)
    assert lengths[1] < lengths[4] < lengths[16]
    cycles = decode(EXACT, drafter_of(EXACT, RANKING, VOCAB), PROMPT, GenerationSettings(1, 24, tree=DraftShape(3, 2)))
    assert [len(cycle.emitted_ids) for cycle in cycles] == [4] * 6
    assert all(cycle.own_token == "bonus" for cycle in cycles)


def test_the_records_probabilities_are_those_of_both_models() -> None:
    """Bug: a probability beside the wrong node: rows one off, or those of a sibling's children."""
    shape = DraftShape(3, 3, 9)
    for sampling in (SamplingSettings(), SamplingSettings(temperature=0.7, seed=3)):
        text = list(PROMPT)

        def probs(model: LanguageModel, ids: list[int], temperature: float) -> torch.Tensor:
            with torch.inference_mode():
                states = model.body(input_ids=torch.tensor([ids])).last_hidden_state[0, -1:]
                return (model.head.logits(states)[0] / (temperature or 1)).softmax(-1)

        how = GenerationSettings(1, 20, sampling, shape)
        for cycle in decode(EXACT, drafter_of(EXACT_DRAFTER, RANKING, VOCAB), PROMPT, how):
            paths: list[list[int]] = []
            for node, token in enumerate(cycle.drafted_ids):
                before = paths[cycle.parents[node]] if cycle.parents[node] >= 0 else []
                paths.append([*before, token])
                for model, told in ((EXACT, cycle.target_probs), (EXACT_DRAFTER, cycle.draft_probs)):
                    expected = probs(model, [*text, *before], sampling.temperature)[token]
                    assert told[node] == pytest.approx(float(expected), rel=1e-4)
            text += cycle.emitted_ids
            last = probs(EXACT, text[:-1], sampling.temperature)[text[-1]]
            assert cycle.next_prob == pytest.approx(float(last), rel=1e-4)


def test_a_draft_no_deeper_than_what_is_left() -> None:
    """Bug: nodes at positions that the model was not made for, or a tree that could not be used."""
    for length in range(1, 12):
        cycles = decode(
            EXACT,
            drafter_of(EXACT_DRAFTER, RANKING, VOCAB),
            PROMPT,
            GenerationSettings(1, length, tree=DraftShape(5, 3)),
        )
        emitted = 0
        for cycle in cycles:
            assert cycle.depth == min(5, length - emitted - 1)
            emitted += len(cycle.emitted_ids)
        assert emitted == length


def test_models_that_cannot_take_part_are_refused_before_anything_runs() -> None:
    """Bug: a recurrence or a convolution reads a tree's siblings as if they were in a row; the drafter's body is not
    asked."""
    mamba = causal_lm(0, MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2))
    recurrent = language_model(mamba, max_length=100)
    conv = language_model(causal_lm(0, Lfm2Config(**SMALL, layer_types=["conv", "full_attention"])))
    tree, never = GenerationSettings(2, 9, tree=DraftShape(2, 2)), StopCondition(frozenset())
    for model in (recurrent, conv):
        for target, drafts in ((model, EXACT), (EXACT, model)):
            with pytest.raises(ModelError, match=r"^tiny \((Mamba|Lfm2)Model\) cannot read a draft tree"):
                generate(target, drafter_of(drafts, RANKING, VOCAB), PROMPT, tree, never)
        chains = tokens(decode(model, drafter_of(model, RANKING, VOCAB), PROMPT, GenerationSettings(2, 9)))
        assert chains == tokens(decode(model, None, PROMPT, GenerationSettings(2, 9)))
    with pytest.raises(SettingError, match="nodes"):
        GenerationSettings(tree=DraftShape(2, 2, 0))


# Sampling


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), k=st.integers(1, VOCAB), shape=SHAPES, eos=st.integers(0, VOCAB - 1))
def test_the_record_of_a_sampled_run_is_consistent(seed: int, k: int, shape: DraftShape, eos: int) -> None:
    """Bug: counts, flags or probabilities that contradict each other when sampling; a seed that is not enough."""
    how = GenerationSettings(1, 25, SamplingSettings(temperature=0.9, top_p=0.95, seed=seed), shape)
    stop = StopCondition(frozenset([eos]))
    cycles = decode(EXACT, drafter_of(EXACT_DRAFTER, RANKING, k), PROMPT, how, stop)
    check_record(cycles, shape, set(RANKING[:k].tolist()))
    assert eos not in tokens(cycles)[:-1]
    torch.manual_seed(seed + 1)
    assert tokens(decode(EXACT, drafter_of(EXACT_DRAFTER, RANKING, k), PROMPT, how, stop)) == tokens(cycles)


# The distribution of sampled text through the whole engine, on a chain of tokens whose law is known. Fixed seeds;
# correct code would fail for one choice of them in ten thousand, per check.

FALSE_ALARM, SURELY = 1e-4, 1e-12
TOY = 12


class OneRowHead(RankedHead):
    """A wrong one: every row gets the logits of the first, the row before the draft."""

    def logits(self, hidden: torch.Tensor, k: int | None = None, rows: int | None = None) -> torch.Tensor:
        return super().logits(hidden[:1], k).expand(len(hidden), -1)


def agreement(k: int, runs: int, blind: bool = False) -> tuple[float, float]:
    """How well tokens 1 and 2, and tokens 4 and 5, of many short runs follow the target's law; `blind` with the wrong
    head."""
    generator = torch.Generator().manual_seed(3)
    table = 1.5 * torch.randn(TOY, TOY, generator=generator)
    target, drafting = MarkovModel(table), MarkovModel(table + torch.randn(TOY, TOY, generator=generator))
    ranking = torch.randperm(TOY, generator=torch.Generator().manual_seed(2))
    drafter = IndependentDrafter(drafting.new_backbone(), drafting.head.reordered(ranking), k, 1000)
    if blind:
        target.head = OneRowHead(target.head.weight, target.head.ranking)
    texts = []
    for seed in range(runs):
        how = GenerationSettings(1, 9, SamplingSettings(0.8, top_p=0.95, seed=seed), DraftShape(3, 3, 8))
        text: list[int] = []
        for cycle in generate(target, drafter, [1, 0], how, StopCondition(frozenset())):  # type: ignore[arg-type]
            text += cycle.emitted_ids
            if len(text) >= 5:
                break
        texts.append(text[:5])
    step = law(table.double(), SamplingSettings(0.8, top_p=0.95)).double()  # [V, V]
    step = step / step.sum(-1, keepdim=True)
    pairs = torch.tensor(texts)
    fourth = step[0] @ step @ step @ step
    return (
        p_value(pair_counts(pairs[:, :2], TOY), (step[0][:, None] * step).numpy()),
        p_value(pair_counts(pairs[:, 3:], TOY), (fourth[:, None] * step).numpy()),
    )


@pytest.mark.parametrize("k", [4, TOY])
def test_sampled_text_follows_the_targets_law(k: int) -> None:
    """Bug: the accept rule is right but fed the wrong rows, laws or kept tokens."""
    assert min(agreement(k, 1500)) > FALSE_ALARM


def test_the_test_rejects_laws_of_another_row() -> None:
    """Bug of the test: it would not notice a tree that is judged by the laws of other rows."""
    assert min(agreement(TOY, 400, blind=True)) < SURELY
