"""The decoding loop: the target's own output, whatever the drafter, and an honest record of each cycle."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma2Config, MistralConfig, PreTrainedModel

from tests.chi_square import p_value, pair_counts
from tests.toys import (
    MarkovModel,
    causal_lm,
    decode,
    disturbed,
    drafter_of,
    language_model,
    llama_config,
    tokens,
)
from vocabtrim_core.decoding import verification
from vocabtrim_core.decoding.engine import MAX_GAMMA, Cycle, GenerationSettings, generate
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.drafters import independent
from vocabtrim_core.drafters.independent import IndependentDrafter
from vocabtrim_core.errors import SettingError
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.models import ModelPair
from vocabtrim_core.sampling import SamplingSettings, law
from vocabtrim_core.trees import TokenTree

VOCAB, CONTEXT = 32, 96
FORCED = 2
PROMPT = [5, 6, 7, 8]
# Another order than that of the ids, so that a rank taken for an id shows.
RANKING = torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))

TARGET_LM = causal_lm(0, llama_config(VOCAB, context=CONTEXT))
TARGET = language_model(TARGET_LM)
# Agrees with the target about half of the time.
DRAFTER = language_model(disturbed(TARGET_LM, 0.15))
# The same in float64, where a block and single tokens give the same logits up to 1e-15: no near-ties.
EXACT_LM = causal_lm(0, llama_config(VOCAB, context=CONTEXT), torch.float64)
EXACT = language_model(EXACT_LM)
EXACT_DRAFTER = language_model(disturbed(EXACT_LM, 0.15))


def reference(
    model: PreTrainedModel, prompt: Sequence[int], new_tokens: int, eos: list[int] | None = None
) -> list[int]:
    """What `generate` of transformers gives."""
    ids = torch.tensor([list(prompt)])
    # Without a mask, `generate` would not read what it takes for padding.
    mask = torch.ones_like(ids)
    output = model.generate(  # type: ignore[operator]
        ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens, eos_token_id=eos, pad_token_id=0
    )
    return output[0, len(prompt) :].tolist()


def check_record(cycles: list[Cycle], gamma: int, kept: set[int]) -> None:
    """What holds for the record of every generation with a drafter."""
    for number, cycle in enumerate(cycles):
        last = number == len(cycles) - 1
        drafted, emitted = cycle.drafted_ids, cycle.emitted_ids
        assert 0 <= cycle.accepted <= len(drafted) <= gamma
        assert len(cycle.draft_probs) == len(cycle.target_probs) == len(drafted)
        assert all(0 <= prob <= 1 + 1e-6 for prob in (*cycle.draft_probs, *cycle.target_probs))
        assert set(drafted) <= kept
        assert emitted[: cycle.accepted] == drafted[: cycle.accepted]
        assert (cycle.finish is not None) == last
        assert (cycle.own_token is None) == (cycle.next_prob is None)
        assert len(emitted) == cycle.accepted + (cycle.own_token is not None)
        if cycle.own_token is None:
            assert cycle.finish in ("eos", "stop string") and len(drafted) == cycle.accepted
        elif cycle.own_token == "correction":
            assert cycle.accepted < len(drafted)
        else:
            assert cycle.accepted == len(drafted)
            assert cycle.own_token == ("bonus" if drafted else "vanilla")
        outside = cycle.own_token == "correction" and emitted[-1] not in kept
        assert cycle.out_of_vocabulary == outside
        times = cycle.times
        parts = (times.drafter_body, times.drafter_head, times.verification, times.acceptance, times.bookkeeping)
        parts = (*parts, times.rest)
        assert min(parts) >= 0 and times.verification > 0
        assert times.total == pytest.approx(sum(parts))
        assert (times.prefill > 0) == (number == 0)


# Greedy decoding


@pytest.mark.parametrize("prompt", [[9], PROMPT, list(range(20))])
@pytest.mark.parametrize("eos", [[], [3], [11, 4]])
def test_vanilla_is_what_transformers_generates(prompt: list[int], eos: list[int]) -> None:
    """Bug: the first or last token of the prompt is lost or run twice; one of several end tokens is not heeded."""
    cycles = decode(TARGET, None, prompt, GenerationSettings(max_new_tokens=60), StopCondition(frozenset(eos)))
    assert tokens(cycles) == reference(TARGET_LM, prompt, 60, eos or None)
    assert all(cycle.own_token == "vanilla" and len(cycle.emitted_ids) == 1 for cycle in cycles)
    assert not any(cycle.drafted_ids or cycle.out_of_vocabulary for cycle in cycles)


@pytest.mark.parametrize("gamma", range(1, 9))
def test_greedy_output_is_the_same_at_every_k_and_gamma(gamma: int) -> None:
    """Bug: anything that lets the drafter change the target's text: at some k, some draft length, or some accepted
    count."""
    expected = reference(EXACT_LM, PROMPT, 16)
    for k in range(FORCED, VOCAB + 1):
        drafter = drafter_of(EXACT_DRAFTER, RANKING, k)
        cycles = decode(EXACT, drafter, PROMPT, GenerationSettings(gamma, max_new_tokens=16))
        assert tokens(cycles) == expected, f"k = {k}"
        check_record(cycles, gamma, set(RANKING[:k].tolist()))


@settings(max_examples=50)
@given(
    seed=st.integers(0, 50),
    noise=st.sampled_from([0.0, 0.05, 0.15, 0.5]),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    k=st.integers(FORCED, VOCAB),
    gamma=st.integers(1, 8),
    eos=st.sets(st.integers(0, VOCAB - 1), max_size=2),
    new_tokens=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_greedy_output_is_the_targets_for_any_pair(
    seed: int,
    noise: float,
    prompt: list[int],
    k: int,
    gamma: int,
    eos: set[int],
    new_tokens: int,
    dtype: torch.dtype,
) -> None:
    """Bug: as above, in a corner that the fixed pair does not reach (whole drafts accepted, an end token in the middle
    of an accepted block, a length that ends inside a draft)."""
    model = causal_lm(seed, llama_config(VOCAB, layers=1), dtype)
    target, drafting = language_model(model), language_model(disturbed(model, noise))
    how, stop = GenerationSettings(gamma, new_tokens), StopCondition(frozenset(eos))
    vanilla = decode(target, None, prompt, how, stop)
    cycles = decode(target, drafter_of(drafting, RANKING, k), prompt, how, stop)
    assert tokens(cycles) == tokens(vanilla)
    assert cycles[-1].finish == vanilla[-1].finish
    check_record(cycles, gamma, set(RANKING[:k].tolist()))


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**(WINDOWED := {
            "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3,
            "max_position_embeddings": 128, "sliding_window": 8, "tie_word_embeddings": False,
        })),
        Gemma2Config(**WINDOWED, final_logit_softcapping=5.0),
    ],
    ids=["mistral", "gemma2 with a soft-cap"],
)  # fmt: skip
@pytest.mark.parametrize("k", [4, VOCAB])
def test_greedy_output_is_the_same_past_a_sliding_window(config: Any, k: int) -> None:
    """Bug: a rewind past the window brings back too few keys; the soft-cap is not applied (or to one side only)."""
    model = causal_lm(2, config, torch.float64)
    target, drafting = language_model(model), language_model(disturbed(model, 0.1))
    vanilla = decode(target, None, PROMPT, GenerationSettings(max_new_tokens=60))
    assert tokens(vanilla) == reference(model, PROMPT, 60)
    for gamma in (1, 3, 8):
        cycles = decode(target, drafter_of(drafting, RANKING, k), PROMPT, GenerationSettings(gamma, 60))
        assert tokens(cycles) == tokens(vanilla)
        check_record(cycles, gamma, set(RANKING[:k].tolist()))


def test_bf16_vanilla_is_what_transformers_generates() -> None:
    """Bug: the head or the argmax is computed in another dtype than the model's own."""
    model = causal_lm(0, llama_config(VOCAB), torch.bfloat16)
    cycles = decode(language_model(model), None, PROMPT, GenerationSettings(max_new_tokens=40))
    assert tokens(cycles) == reference(model, PROMPT, 40)


@pytest.mark.parametrize("gamma", [1, 3, 8])
@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(temperature=0.9, top_p=0.95)])
def test_a_drafter_that_is_the_target_is_always_right(gamma: int, sampling: SamplingSettings) -> None:
    """Bug: drafter and target out of step by a token, so that even the same model disagrees; tau without the bonus."""
    how = GenerationSettings(gamma, max_new_tokens=6 * (gamma + 1), sampling=sampling)
    cycles = decode(EXACT, drafter_of(EXACT, RANKING, VOCAB), PROMPT, how)
    assert [len(cycle.emitted_ids) for cycle in cycles] == [gamma + 1] * 6
    assert all(cycle.own_token == "bonus" and cycle.accepted == gamma for cycle in cycles)


def test_a_drafter_that_cannot_say_the_right_token_is_rejected_out_of_vocabulary() -> None:
    """Bug: out-of-vocabulary rejections counted as disagreements, or the flag set by the drafted token."""
    expected = tokens(decode(EXACT, None, PROMPT, GenerationSettings(max_new_tokens=12)))
    unsaid = [i for i in range(VOCAB) if i not in expected]
    ranking = [*unsaid, *sorted(set(expected))]
    cycles = decode(EXACT, drafter_of(EXACT, ranking, len(unsaid)), PROMPT, GenerationSettings(3, 12))
    assert tokens(cycles) == expected
    rejected = [cycle for cycle in cycles if cycle.own_token == "correction"]
    assert len(rejected) == 11 and all(cycle.out_of_vocabulary and cycle.accepted == 0 for cycle in rejected)


def test_probabilities_are_those_of_both_models() -> None:
    """Bug: a probability shown beside the wrong token: rows one off, or ranks taken for ids."""
    drafter = drafter_of(EXACT_DRAFTER, RANKING, VOCAB)
    text = list(PROMPT)

    def probs(model: LanguageModel, ids: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return model.head.logits(model.body(input_ids=torch.tensor([ids])).last_hidden_state[0, -1:])[0].softmax(-1)

    for cycle in decode(EXACT, drafter, PROMPT, GenerationSettings(3, 30)):
        for position, token in enumerate(cycle.drafted_ids):
            before = [*text, *cycle.drafted_ids[:position]]
            assert cycle.draft_probs[position] == pytest.approx(float(probs(EXACT_DRAFTER, before)[token]), rel=1e-4)
            assert cycle.target_probs[position] == pytest.approx(float(probs(EXACT, before)[token]), rel=1e-4)
        text += cycle.emitted_ids
        assert cycle.next_prob == pytest.approx(float(probs(EXACT, text[:-1])[text[-1]]), rel=1e-4)


# Where it ends


@pytest.mark.parametrize("gamma", [1, 3, 8])
@pytest.mark.parametrize("position", range(9))
def test_an_end_token_inside_an_accepted_block_ends_the_text_there(gamma: int, position: int) -> None:
    """Bug: tokens after an end token that was drafted and accepted are emitted or counted; a bonus follows the end."""
    free = tokens(decode(EXACT, None, PROMPT, GenerationSettings(max_new_tokens=30)))
    eos = free[position]
    stop = StopCondition(frozenset([eos]))
    cycles = decode(EXACT, drafter_of(EXACT, RANKING, VOCAB), PROMPT, GenerationSettings(gamma, 30), stop)
    assert tokens(cycles) == free[: free.index(eos) + 1]
    assert cycles[-1].finish == "eos"
    check_record(cycles, gamma, set(range(VOCAB)))
    inside = (free.index(eos) + 1) % (gamma + 1) != 0
    assert (cycles[-1].own_token is None) == inside


@pytest.mark.parametrize("gamma", [1, 4, 8])
@pytest.mark.parametrize("start", range(6))
def test_a_stop_string_ends_the_text_with_the_token_that_completes_it(gamma: int, start: int) -> None:
    """Bug: a stop string that spans two cycles, or lies in the middle of an accepted block, is overrun."""

    def letters(ids: Sequence[int]) -> str:
        return "".join(chr(97 + i) for i in ids)

    free = tokens(decode(EXACT, None, PROMPT, GenerationSettings(max_new_tokens=30)))
    text = letters(free[start : start + 3])
    stop = StopCondition(frozenset(), (text,), letters)
    vanilla = decode(EXACT, None, PROMPT, GenerationSettings(max_new_tokens=30), stop)
    assert letters(tokens(vanilla)).endswith(text) and vanilla[-1].finish == "stop string"
    for drafting in (EXACT, EXACT_DRAFTER):
        cycles = decode(EXACT, drafter_of(drafting, RANKING, VOCAB), PROMPT, GenerationSettings(gamma, 30), stop)
        assert tokens(cycles) == tokens(vanilla) and cycles[-1].finish == "stop string"
        check_record(cycles, gamma, set(range(VOCAB)))


@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("drafting", [EXACT, EXACT_DRAFTER], ids=["always right", "now and then"])
def test_every_length_is_kept_exactly(gamma: int, drafting: LanguageModel) -> None:
    """Bug: up to gamma tokens too many or too few at the end; a draft that could not be used is run all the same."""
    free = tokens(decode(EXACT, None, PROMPT, GenerationSettings(max_new_tokens=20)))
    for length in range(1, 20):
        cycles = decode(EXACT, drafter_of(drafting, RANKING, VOCAB), PROMPT, GenerationSettings(gamma, length))
        assert tokens(cycles) == free[:length] and cycles[-1].finish == "length"
        check_record(cycles, gamma, set(range(VOCAB)))
        emitted = 0
        for cycle in cycles:
            assert len(cycle.drafted_ids) == min(gamma, length - emitted - 1)
            emitted += len(cycle.emitted_ids)


@pytest.mark.parametrize("left", [1, 2, 5])
@pytest.mark.parametrize("shorter", ["target", "drafter"])
def test_no_model_leaves_its_context(left: int, shorter: str) -> None:
    """Bug: positions beyond what a model was made for, in its cache or in a draft; a text that ends where the drafter's
    context does."""
    longest: list[int] = []

    class Watched:
        def __init__(self, model: LanguageModel) -> None:
            self._backbone = model.new_backbone()

        def run(self, ids: torch.Tensor, tree: TokenTree | None = None) -> torch.Tensor:
            hidden = self._backbone.run(ids, tree)
            longest.append(self._backbone.length)
            return hidden

        def __getattr__(self, name: str) -> Any:
            return getattr(self._backbone, name)

    limit = len(PROMPT) + left
    target = language_model(EXACT_LM, max_length=limit if shorter == "target" else CONTEXT)
    head = EXACT_DRAFTER.head.reordered(RANKING)
    drafter = IndependentDrafter(Watched(EXACT_DRAFTER), head, VOCAB, limit if shorter == "drafter" else CONTEXT)
    cycles = decode(target, drafter, PROMPT, GenerationSettings(4, 50))
    assert len(tokens(cycles)) == (left if shorter == "target" else 50) and cycles[-1].finish == "length"
    assert max(longest, default=0) <= limit


def test_impossible_requests_are_refused_before_anything_runs() -> None:
    """Bug: an empty prompt or one that fills the context is an error from deep inside torch, or ends without a word."""
    with pytest.raises(SettingError, match="empty"):
        generate(TARGET, None, [], GenerationSettings(), StopCondition(frozenset()))
    with pytest.raises(SettingError, match=f"{CONTEXT} tokens long.*holds {CONTEXT}"):
        generate(TARGET, None, [1] * CONTEXT, GenerationSettings(), StopCondition(frozenset()))
    for gamma in (0, -1, MAX_GAMMA + 1):
        with pytest.raises(SettingError, match="gamma"):
            GenerationSettings(gamma=gamma)
    with pytest.raises(SettingError, match="at least 1"):
        GenerationSettings(max_new_tokens=0)


# Streaming


def test_cycles_are_streamed_and_a_stopped_run_leaves_nothing_behind() -> None:
    """Bug: everything is computed before the first cycle is seen; inference mode or the global random state leak into
    the page that reads the cycles; a run that was stopped disturbs the next one."""
    how = GenerationSettings(3, 30, SamplingSettings(temperature=1, seed=4))
    expected = tokens(decode(EXACT, drafter_of(EXACT_DRAFTER, RANKING, 9), PROMPT, how))
    running = generate(EXACT, drafter_of(EXACT_DRAFTER, RANKING, 9), PROMPT, how, StopCondition(frozenset()))
    state = torch.random.get_rng_state()
    seen = list(next(running).emitted_ids)
    assert not torch.is_inference_mode_enabled()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert seen == expected[: len(seen)] and len(seen) < 30
    drafter = drafter_of(EXACT_DRAFTER, RANKING, 9)
    stopped = generate(EXACT, drafter, PROMPT, how, StopCondition(frozenset()))
    next(stopped)
    stopped.close()  # type: ignore[attr-defined]
    assert tokens(decode(EXACT, drafter, PROMPT, how)) == expected
    assert seen + tokens(list(running)) == expected


def test_the_callers_time_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: what a page draws between two cycles makes a method look slow."""
    clock = 0.0

    def tick() -> float:
        nonlocal clock
        clock += 0.001
        return clock

    monkeypatch.setattr("time.perf_counter", tick)
    for cycle in generate(EXACT, None, PROMPT, GenerationSettings(max_new_tokens=5), StopCondition(frozenset())):
        assert cycle.times.total < 0.1
        clock += 100


# Sampling


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.8}, {"temperature": 1.2, "top_k": 9, "top_p": 0.9, "min_p": 0.02}]
)
def test_a_seed_gives_one_output_and_another_seed_another(sampling: dict) -> None:
    """Bug: the seed is ignored, or the global random state is used."""

    def run(seed: int, k: int | None) -> list[int]:
        how = GenerationSettings(3, 30, SamplingSettings(**sampling, seed=seed))
        return tokens(decode(EXACT, drafter_of(EXACT_DRAFTER, RANKING, k) if k else None, PROMPT, how))

    for k in (None, 8, VOCAB):
        once = run(1, k)
        torch.manual_seed(123)
        assert run(1, k) == once
        assert run(2, k) != once


def test_sampling_from_one_token_is_greedy() -> None:
    """Bug: laws of block rows mixed up; a filtered token drawn as correction or bonus."""
    greedy = tokens(decode(EXACT, None, PROMPT, GenerationSettings(max_new_tokens=30)))
    how = GenerationSettings(4, 30, SamplingSettings(temperature=0.7, top_k=1))
    cycles = decode(EXACT, drafter_of(EXACT_DRAFTER, RANKING, 20), PROMPT, how)
    assert tokens(cycles) == greedy
    check_record(cycles, 4, set(RANKING[:20].tolist()))


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), k=st.integers(1, VOCAB), gamma=st.integers(1, 8), eos=st.integers(0, VOCAB - 1))
def test_the_record_of_a_sampled_run_is_consistent(seed: int, k: int, gamma: int, eos: int) -> None:
    """Bug: counts, flags or probabilities that contradict each other when sampling."""
    how = GenerationSettings(gamma, 25, SamplingSettings(temperature=0.9, top_p=0.95, seed=seed))
    drafter = drafter_of(EXACT_DRAFTER, RANKING, k)
    cycles = decode(EXACT, drafter, PROMPT, how, StopCondition(frozenset([eos])))
    check_record(cycles, gamma, set(RANKING[:k].tolist()))
    assert eos not in tokens(cycles)[:-1]
    assert all(prob > 0 for cycle in cycles for prob in cycle.draft_probs)


# The distribution of sampled text through the whole engine, on a chain whose law is known. Fixed seeds; correct code
# would fail for one choice of them in ten thousand, per check.

FALSE_ALARM, SURELY = 1e-4, 1e-12
TOY = 12
HOW = SamplingSettings(temperature=0.8, top_p=0.95)


def toy_models() -> tuple[MarkovModel, MarkovModel]:
    generator = torch.Generator().manual_seed(3)
    table = 1.5 * torch.randn(TOY, TOY, generator=generator)
    return MarkovModel(table), MarkovModel(table + torch.randn(TOY, TOY, generator=generator))


def agreement(k: int, runs: int, context: int = 1000) -> tuple[float, float]:
    """How well tokens 1 and 2, and tokens 4 and 5, of many short runs follow the target's law. `context` is the
    drafter's."""
    target, drafting = toy_models()
    ranking = torch.randperm(TOY, generator=torch.Generator().manual_seed(2))
    drafter = IndependentDrafter(drafting.new_backbone(), drafting.head.reordered(ranking), k, context)
    texts = []
    for seed in range(runs):
        how = GenerationSettings(3, 9, SamplingSettings(HOW.temperature, HOW.top_k, HOW.top_p, HOW.min_p, seed))
        text: list[int] = []
        for cycle in generate(target, drafter, [1, 0], how, StopCondition(frozenset())):  # type: ignore[arg-type]
            text += cycle.emitted_ids
            if len(text) >= 5:
                break
        texts.append(text[:5])
    step = law(target.table.double(), HOW).double()  # [V, V]
    step = step / step.sum(-1, keepdim=True)
    pairs = torch.tensor(texts)
    fourth = step[0] @ step @ step @ step
    return (
        p_value(pair_counts(pairs[:, :2], TOY), (step[0][:, None] * step).numpy()),
        p_value(pair_counts(pairs[:, 3:], TOY), (fourth[:, None] * step).numpy()),
    )


@pytest.mark.parametrize(("k", "context"), [(4, 1000), (TOY, 1000), (4, 6)])
def test_sampled_text_follows_the_targets_law(k: int, context: int) -> None:
    """Bug: the accept rule is right but fed the wrong rows, laws or kept tokens; a bonus drawn from the draft's law;
    text beyond the drafter's context from another law."""
    assert min(agreement(k, 2000, context)) > FALSE_ALARM


def test_the_test_rejects_accepting_by_target_prob_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug of the test: it would not notice `rand() < target_prob`."""
    monkeypatch.setattr(verification, "acceptance_probability", lambda target_prob, draft_prob: target_prob)
    assert min(agreement(7, 1000)) < SURELY


def test_the_test_rejects_unwarped_draft_probs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug of the test: it would not notice drafts drawn from the warped law and accepted against the plain softmax."""
    drawn_from = independent.draw
    monkeypatch.setattr(independent, "law", lambda logits, sampling: logits.float().softmax(-1))
    monkeypatch.setattr(
        independent, "draw", lambda probs, generator: drawn_from(law(probs.log()[None], HOW)[0], generator)
    )
    assert min(agreement(7, 1000)) < SURELY


# The embedded pair's shape: padded vocabularies and a real tokenizer


@pytest.mark.parametrize("k", [8, 64, None])
def test_a_pair_with_padded_vocabularies_decodes_the_targets_text(tiny_pair: ModelPair, k: int | None) -> None:
    """Bug: a drafter padded further than its target proposes ids that the target does not have."""
    usable = tiny_pair.usable_vocab_size
    head = tiny_pair.drafter.head.reordered(torch.arange(usable).flip(0))
    prompt = tiny_pair.tokenizer.encode_prompt("The cat sat on the mat.")
    stop = StopCondition(frozenset(tiny_pair.target.eos_ids))
    vanilla = decode(tiny_pair.target, None, prompt, GenerationSettings(max_new_tokens=40), stop)
    drafter = tiny_pair.drafter.new_drafter(head, k or usable)
    cycles = decode(tiny_pair.target, drafter, prompt, GenerationSettings(4, 40), stop)
    assert tokens(cycles) == tokens(vanilla)
    check_record(cycles, 4, set(head.ranking[: k or usable].tolist()))
