"""Several sequences in lockstep: each says and records what it would alone, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Qwen3Config

from tests.chi_square import p_value, pair_counts
from tests.drafters.checkpoints import VOCAB as HEADS_VOCAB
from tests.drafters.checkpoints import config, eagle1, eagle3, medusa, save
from tests.toys import causal_lm, decode, disturbed, drafter_of, language_model, llama_config
from vocabtrim_core import lean, passes
from vocabtrim_core.decoding.engine import Cycle, Decoding, GenerationSettings, generate
from vocabtrim_core.decoding.lockstep import decode_together
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.drafters import Drafter
from vocabtrim_core.drafters.lookup import LookupDrafter
from vocabtrim_core.drafters.registry import load_added
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.sampling import SamplingSettings, law
from vocabtrim_core.trees import DraftShape

VOCAB = 32
RANKING = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))
TARGET_LM = causal_lm(0, llama_config(VOCAB))
TARGET = language_model(TARGET_LM)
DRAFTER = language_model(disturbed(TARGET_LM, 0.15))
PROMPTS = [[5, 6, 7, 8], [3], [9, 1, 4, 4, 20, 30, 2, 11, 12, 13, 14], [17, 18], [3, 3], [21, 5, 7, 9, 11, 13, 15]]
STOP = StopCondition(frozenset({4, 9}))
GREEDY = SamplingSettings()
SAMPLED = SamplingSettings(temperature=0.9, top_k=20, top_p=0.95, seed=7)


def record(cycle: Cycle) -> Cycle:
    """What a cycle says, without what rounding or the clock change."""
    return replace(cycle, draft_probs=(), target_probs=(), next_prob=None, times=None)  # type: ignore[arg-type]


def lockstep(decodings: Sequence[Decoding], size: int) -> list[list[Cycle]]:
    found: list[list[Cycle]] = [[] for _ in decodings]
    for round in decode_together(decodings, size):
        assert round.seconds > 0 and 1 <= len(round.cycles) <= size
        for number, cycle in round.cycles.items():
            found[number].append(cycle)
    return found


def drafter(kind: str, k: int) -> Drafter | None:
    if kind == "vanilla":
        return None
    return LookupDrafter(VOCAB) if kind == "lookup" else drafter_of(DRAFTER, RANKING, k)


@settings(max_examples=25)
@given(
    prompts=st.lists(st.sampled_from(PROMPTS), min_size=1, max_size=5),
    size=st.integers(1, 4),
    kind=st.sampled_from(["vanilla", "independent", "lookup"]),
    shape=st.sampled_from([DraftShape(1), DraftShape(3), DraftShape(3, 2), DraftShape(2, 3, 5)]),
    k=st.sampled_from([6, VOCAB]),
    lengths=st.lists(st.integers(1, 20), min_size=5, max_size=5),
    sampling=st.sampled_from([GREEDY, SAMPLED]),
)
def test_each_sequence_says_and_accepts_what_it_does_alone(
    prompts: list[list[int]],
    size: int,
    kind: str,
    shape: DraftShape,
    k: int,
    lengths: list[int],
    sampling: SamplingSettings,
) -> None:
    """Bug: a sequence reads another's cache, positions or logits, forgets too much or too little when another accepts
    more, draws from a shared source of chance, or does not end where it should."""
    how = [
        GenerationSettings(shape.depth, length, replace(sampling, seed=number), shape)
        for number, length in enumerate(lengths[: len(prompts)])
    ]
    jobs = list(zip(prompts, how, strict=True))
    alone = [decode(TARGET, drafter(kind, k), prompt, one, STOP) for prompt, one in jobs]  # type: ignore[arg-type]
    found = lockstep([Decoding(TARGET, drafter(kind, k), prompt, one, STOP) for prompt, one in jobs], size)
    assert [list(map(record, cycles)) for cycles in found] == [list(map(record, cycles)) for cycles in alone]


@pytest.fixture(scope="module")
def heads_target() -> LanguageModel:
    return language_model(causal_lm(0, llama_config(HEADS_VOCAB, layers=8)))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
@pytest.mark.parametrize("shape", [DraftShape(3), DraftShape(3, 3, 8)], ids=["chain", "tree"])
@pytest.mark.parametrize("kind", ["eagle 1", "eagle 3", "medusa", "medusa, own heads"])
def test_draft_heads_in_lockstep(
    kind: str, shape: DraftShape, sampling: SamplingSettings, heads_target: LanguageModel, tmp_path: Path
) -> None:
    """Bug: slots of one sequence take another's features, positions or cache."""
    tensors = {
        "eagle 1": lambda: eagle1(),
        "eagle 3": lambda: eagle3(),
        "medusa": lambda: medusa(own_heads=False),
        "medusa, own heads": lambda: medusa(),
    }[kind]()
    folder = save(tmp_path / "drafter", tensors, config(num_hidden_layers=1) if kind.startswith("eagle") else {})
    model = load_added(folder, kind, heads_target)
    assert model is not None
    how = [GenerationSettings(3, 6 + 4 * i, replace(sampling, seed=i), shape) for i in range(len(PROMPTS))]
    jobs = list(zip(PROMPTS, how, strict=True))
    alone = [list(generate(heads_target, model.new_drafter(k=20), p, one, STOP)) for p, one in jobs]
    found = lockstep([Decoding(heads_target, model.new_drafter(k=20), p, one, STOP) for p, one in jobs], 4)
    assert [list(map(record, cycles)) for cycles in found] == [list(map(record, cycles)) for cycles in alone]


def test_a_batch_is_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: sequences that wait for the same weights run one by one, or a full batch is not kept full."""
    sizes: list[int] = []

    def counting(backbones: list, *rest: object) -> list[torch.Tensor]:
        sizes.append(len(backbones))
        return lean.run_together(backbones, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(passes, "run_together", counting)
    how = GenerationSettings(2, 9)
    decodings = [
        Decoding(TARGET, drafter_of(DRAFTER, RANKING, VOCAB), p, how, StopCondition(frozenset())) for p in PROMPTS
    ]
    rounds = list(decode_together(decodings, 3))
    assert max(sizes) == 3 and sizes.count(3) > len(sizes) / 2
    assert all(len(round.cycles) == 3 for round in rounds[: len(rounds) // 2])


def test_sampled_law_in_a_batch() -> None:
    """Bug: sequences of a batch draw from another law than the target's, or their draws hang together.

    The first two tokens of 1,500 sequences, ten at a time, against their exact joint law.
    """
    prompt, n = PROMPTS[0], 1_500
    sampling = SamplingSettings(temperature=1.0)
    decodings = (
        Decoding(
            TARGET,
            drafter_of(DRAFTER, RANKING, 12),
            prompt,
            GenerationSettings(1, 2, replace(sampling, seed=seed)),
            StopCondition(frozenset()),
        )
        for seed in range(n)
    )
    found: dict[int, list[int]] = {}
    for round in decode_together(decodings, 10):
        for number, cycle in round.cycles.items():
            found.setdefault(number, []).extend(cycle.emitted_ids)
    with torch.inference_mode():
        first = law(TARGET_LM(torch.tensor([prompt])).logits[:, -1], sampling)[0]  # [V]
        after = TARGET_LM(torch.tensor([[*prompt, token] for token in range(VOCAB)])).logits[:, -1]
        joint = first[:, None].double() * law(after, sampling)  # [V, V]
    assert p_value(pair_counts(torch.tensor([found[i] for i in range(n)]), VOCAB), joint.numpy()) > 1e-4


def test_windows_and_taps_run_together() -> None:
    """Bug: a sliding window or a tapped layer of one sequence taken from another."""
    sizes = llama_config(VOCAB).to_dict()
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    qwen = Qwen3Config(
        **{name: sizes[name] for name in names}, vocab_size=VOCAB, head_dim=8, initializer_range=0.3,
        use_sliding_window=True, sliding_window=6, max_window_layers=1,
    )  # fmt: skip
    body = lean.LeanBody(causal_lm(0, qwen).base_model)
    apart, joined = ([lean.LeanBackbone(body, (1,)) for _ in PROMPTS] for _ in range(2))
    for one, other, prompt in zip(apart, joined, PROMPTS, strict=True):
        one.run(torch.tensor(prompt))
        other.run(torch.tensor(prompt))
    for step in range(3):
        blocks = [torch.tensor(prompt[: 1 + (step + i) % 3] or [1]) for i, prompt in enumerate(PROMPTS)]
        expected = [one.run(block) for one, block in zip(apart, blocks, strict=True)]
        found = lean.run_together(joined, blocks, [None] * len(blocks))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert [one.length for one in joined] == [one.length for one in apart]


def test_inference_mode_does_not_leak() -> None:
    """Bug: the reader of the rounds is left in inference mode."""
    decodings = [Decoding(TARGET, None, prompt, GenerationSettings(1, 3), STOP) for prompt in PROMPTS[:2]]
    next(decode_together(decodings, 2))
    assert not torch.is_inference_mode_enabled()
