"""The comparison of methods: figures that follow from the records, runs one at a time, differences found."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from tests.toys import NEVER, causal_lm, language_model
from vocabtrim_core.decoding.engine import Cycle, CycleTimes, GenerationSettings
from vocabtrim_core.evaluation import comparison
from vocabtrim_core.evaluation.comparison import (
    METHODS,
    Contest,
    Method,
    Run,
    Turn,
    clocked,
    collect,
    logit_margin,
    play,
    summarise,
    warm_up,
)
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.models import ModelPair
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape

PROMPTS = [[3, 4, 5], [6], [7, 8]]


@pytest.fixture
def contest(tiny_pair: ModelPair) -> Contest:
    usable = tiny_pair.usable_vocab_size
    head = tiny_pair.drafter.head.reordered(torch.arange(usable).flip(0))
    return Contest(tiny_pair, head, 40, GenerationSettings(gamma=3, max_new_tokens=12), NEVER)


def cycle(
    emitted: list[int],
    drafted: int = 0,
    seconds: float = 1.0,
    finish: str | None = None,
    outside: bool = False,
    prefill: float = 0.0,
) -> Cycle:
    """A record made by hand: all drafted tokens but those after the emitted ones were accepted."""
    accepted = min(len(emitted) - 1, drafted)
    kind = "vanilla" if not drafted else "bonus" if accepted == drafted else "correction"
    return Cycle(
        drafted_ids=(*emitted[:accepted], *[0] * (drafted - accepted)),
        parents=tuple(range(-1, drafted - 1)),
        draft_probs=(0.5,) * drafted,
        target_probs=(0.5,) * drafted,
        path=tuple(range(accepted)),
        emitted_ids=tuple(emitted),
        own_token=kind,  # type: ignore[arg-type]
        next_prob=0.5,
        out_of_vocabulary=outside,
        finish=finish,  # type: ignore[arg-type]
        times=CycleTimes(0.1 * seconds, 0.2 * seconds, 0.6 * seconds, 0.0, 0.0, 0.1 * seconds, prefill),
    )


def vanilla(seconds: float, ids: tuple[int, ...] = (1, 2, 3, 4), prefill: float = 0.0) -> Run:
    cycles = [cycle([i], seconds=seconds / len(ids), prefill=prefill if i == ids[0] else 0.0) for i in ids]
    return Run((*cycles[:-1], replace(cycles[-1], finish="length")))


def drafted(seconds: float, ids: tuple[int, ...] = (1, 2, 3, 4)) -> Run:
    """Two cycles: one of three drafted tokens with two accepted, one whose only draft is refused."""
    return Run(
        (
            cycle(list(ids[:3]), 3, 0.75 * seconds, outside=True),
            cycle(list(ids[3:]), 1, 0.25 * seconds, finish="length"),
        )
    )


def test_figures_follow_from_the_records(contest: Contest) -> None:
    """Bug: tau without the correction token, alpha with it, speeds that include the prefill, ratios upside down."""
    runs = {
        Turn(0, 0, "vanilla"): vanilla(4.0, prefill=9.0),
        Turn(0, 0, "untrimmed"): drafted(2.0),
        Turn(0, 0, "trimmed"): drafted(1.0),
    }
    result = summarise(contest, PROMPTS, runs)
    plain, full, trimmed = (result.methods[method] for method in METHODS)
    assert plain.tokens_per_second == Spread(pytest.approx(1.0), pytest.approx(1.0), pytest.approx(1.0))
    assert full.tokens_per_second.median == pytest.approx(2.0)
    assert trimmed.tokens_per_second.median == pytest.approx(4.0)
    assert plain.acceptance_length == 1.0 and plain.acceptance_rate is None
    assert trimmed.acceptance_length == 2.0  # 4 tokens in 2 target passes
    assert trimmed.acceptance_rate == 0.5  # 2 of 4
    assert (trimmed.rejections, trimmed.out_of_vocabulary) == (2, 1) and plain.rejections == 0
    assert plain.prefill_seconds == 9.0
    assert trimmed.cycle_seconds.drafter_head == pytest.approx(0.1)  # 0.2 of 1 s, over 2 cycles
    assert trimmed.cycle_seconds.total == pytest.approx(0.5)
    assert trimmed.speedup_vs_vanilla is not None and trimmed.speedup_vs_untrimmed is not None
    assert trimmed.speedup_vs_vanilla.median == pytest.approx(4.0)
    assert trimmed.speedup_vs_untrimmed.median == pytest.approx(2.0)
    assert full.speedup_vs_vanilla is not None and full.speedup_vs_vanilla.median == pytest.approx(2.0)
    assert plain.speedup_vs_vanilla is None and full.speedup_vs_untrimmed is None
    assert result.identical is True and result.differences == () and result.repeats == 1


def test_spreads_are_over_repeats_and_speedups_within_one(contest: Contest) -> None:
    """Bug: a machine that slows down between repeats shows as a speedup; the mean in place of the median."""
    runs = {}
    for repeat, slowness in enumerate([1.0, 10.0, 2.0]):
        for number in range(2):
            runs[Turn(repeat, number, "vanilla")] = vanilla(4.0 * slowness)
            runs[Turn(repeat, number, "untrimmed")] = drafted(2.0 * slowness)
            runs[Turn(repeat, number, "trimmed")] = drafted((1.0 if repeat else 2.0) * slowness)
    trimmed = summarise(contest, PROMPTS, runs).methods["trimmed"]
    speed = trimmed.tokens_per_second
    assert (speed.low, speed.median, speed.high) == pytest.approx((0.4, 2.0, 2.0))
    assert trimmed.speedup_vs_vanilla is not None
    gain = trimmed.speedup_vs_vanilla
    assert (gain.low, gain.median, gain.high) == pytest.approx((2.0, 4.0, 4.0))


def test_speed_over_prompts_is_total_tokens_over_total_seconds(contest: Contest) -> None:
    """Bug: the mean of the prompts' speeds, in which a short prompt weighs as much as a long one."""
    runs = {Turn(0, 0, "vanilla"): vanilla(1.0, (1, 2)), Turn(0, 1, "vanilla"): vanilla(9.0, tuple(range(8)))}
    assert summarise(contest, PROMPTS, runs).methods["vanilla"].tokens_per_second.median == pytest.approx(1.0)


def test_an_unfinished_run_does_not_count(contest: Contest) -> None:
    """Bug: a run that was stopped half-way is compared with whole ones: another length, other text, another speed."""
    whole = drafted(2.0)
    runs = {
        Turn(0, 0, "vanilla"): vanilla(4.0),
        Turn(0, 0, "untrimmed"): whole,
        Turn(0, 0, "trimmed"): Run(drafted(0.001).cycles[:1]),
    }
    result = summarise(contest, PROMPTS, runs)
    assert set(result.methods) == {"vanilla", "untrimmed"}
    assert result.identical is True and result.differences == ()


def test_speeds_compare_the_same_prompts(contest: Contest) -> None:
    """Bug: stopped in the second prompt, one method's speed is over two prompts and another's over one."""
    runs = {
        Turn(0, 0, "vanilla"): vanilla(4.0),
        Turn(0, 0, "untrimmed"): drafted(2.0),
        Turn(0, 0, "trimmed"): drafted(2.0),
        Turn(0, 1, "vanilla"): vanilla(400.0),
    }
    methods = summarise(contest, PROMPTS, runs).methods
    assert methods["vanilla"].tokens_per_second.median == pytest.approx(1.0)
    assert methods["trimmed"].speedup_vs_vanilla is not None
    assert methods["trimmed"].speedup_vs_vanilla.median == pytest.approx(2.0)


def test_nothing_compared_is_not_identical(contest: Contest) -> None:
    """Bug: stopped after vanilla, the outputs of all methods are reported as identical."""
    assert summarise(contest, PROMPTS, {Turn(0, 0, "vanilla"): vanilla(4.0)}).identical is None
    assert summarise(contest, PROMPTS, {}).identical is None
    other = {Turn(0, 0, "vanilla"): vanilla(4.0), Turn(0, 1, "trimmed"): drafted(1.0)}
    assert summarise(contest, PROMPTS, other).identical is None


def test_sampled_outputs_are_not_compared(contest: Contest) -> None:
    """Bug: sampled texts, which differ by design, are reported as a difference."""
    sampled = replace(contest, settings=GenerationSettings(sampling=SamplingSettings(temperature=1)))
    runs = {Turn(0, 0, "vanilla"): vanilla(4.0), Turn(0, 0, "trimmed"): drafted(1.0, (9, 9, 9, 9))}
    result = summarise(sampled, PROMPTS, runs)
    assert result.identical is None and result.differences == ()


@pytest.mark.parametrize(
    "other, position, vanilla_id, other_id",
    [((9, 2, 3, 4), 0, 1, 9), ((1, 2, 3, 9), 3, 4, 9), ((1, 2, 3, 4, 5), 4, None, 5), ((1, 2, 3), 3, 4, None)],
)
def test_the_first_difference_is_found_with_its_margin(
    contest: Contest, other: tuple[int, ...], position: int, vanilla_id: int | None, other_id: int | None
) -> None:
    """Bug: a position one off, the wrong context for the margin, its sign turned round, texts of different length."""
    ends = Run((*[cycle([i]) for i in other[:-1]], cycle([other[-1]], finish="length")))
    runs = {
        Turn(0, 1, "vanilla"): vanilla(4.0),
        Turn(0, 1, "untrimmed"): drafted(1.0),
        Turn(0, 1, "trimmed"): ends,
    }
    result = summarise(contest, PROMPTS, runs)
    assert result.identical is False
    (found,) = result.differences
    assert (found.prompt, found.method, found.position) == (1, "trimmed", position)
    assert (found.vanilla_id, found.other_id) == (vanilla_id, other_id)
    if vanilla_id is None or other_id is None:
        assert found.logit_margin is None
    else:
        context = torch.tensor([[*PROMPTS[1], *other[:position]]])
        with torch.inference_mode():
            target = contest.pair.target
            logits = target.head.logits(target.body(input_ids=context).last_hidden_state[0, -1:])[0]
        assert found.logit_margin == pytest.approx(float(logits[vanilla_id] - logits[other_id]), abs=1e-4)
        assert logit_margin(target, context[0].tolist(), vanilla_id, vanilla_id) == 0


def test_every_method_runs_equally_often_and_in_every_place(contest: Contest) -> None:
    """Bug: one method always runs first, on a cold cache, or is left out of some repeat."""
    order: list[Turn] = []
    for turn, _ in play(contest, PROMPTS, repeats=3):
        if not order or order[-1] != turn:
            order.append(turn)
    # Each turn is one unbroken stretch: the runs follow each other.
    assert len(order) == len(set(order)) == 3 * len(PROMPTS) * len(METHODS)
    rounds = [[turn.method for turn in order[i : i + 3]] for i in range(0, len(order), 3)]
    assert all(sorted(methods) == sorted(METHODS) for methods in rounds)
    for place in range(3):
        assert {method: [r[place] for r in rounds].count(method) for method in METHODS} == dict.fromkeys(METHODS, 3)
    assert rounds[0] == list(METHODS)


def test_runs_are_never_two_at_once(contest: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a method's run is started before the one before it has ended, and both are timed together."""
    running: list[str] = []
    real = Contest.cycles

    def watched(self: Contest, method: Method, prompt_ids: list[int]) -> Iterator[Cycle]:
        assert not running
        running.append(method)
        yield from real(self, method, prompt_ids)
        running.remove(method)

    monkeypatch.setattr(Contest, "cycles", watched)
    assert len(collect(play(contest, PROMPTS, repeats=1))) == 9


def test_the_methods_agree_on_a_real_pair(contest: Contest) -> None:
    """Bug: a method decodes with another prompt, k or gamma than asked for; the figures of a real run do not add up."""
    runs = collect(play(contest, PROMPTS, repeats=2))
    assert all(run.finished for run in runs.values())
    for turn, run in runs.items():
        assert len(run.token_ids) == 12 and run.seconds > 0
        proposed = {i for cycle in run.cycles for i in cycle.drafted_ids}
        if turn.method == "vanilla":
            assert not proposed and len(run.cycles) == 12
        if turn.method == "trimmed":
            assert proposed <= set(contest.ranked_head.ranking[:40].tolist())
    result = summarise(contest, PROMPTS, runs)
    assert result.identical is True and result.repeats == 2
    for method in METHODS:
        figures = result.methods[method]
        cycles = [cycle for turn, run in runs.items() if turn.method == method for cycle in run.cycles]
        assert figures.acceptance_length == pytest.approx(2 * 3 * 12 / len(cycles))
        assert figures.tokens_per_second.low <= figures.tokens_per_second.median <= figures.tokens_per_second.high


def test_a_stopped_play_keeps_what_it_has(contest: Contest) -> None:
    """Bug: stopping loses the runs before, or leaves a half run that counts as finished."""
    played = play(contest, PROMPTS, repeats=3)
    cycles: dict[Turn, list[Cycle]] = {}
    for number, (turn, one) in enumerate(played):
        cycles.setdefault(turn, []).append(one)
        if number == 13:
            played.close()  # type: ignore[attr-defined]
            break
    runs = {turn: Run(tuple(found)) for turn, found in cycles.items()}
    assert [run.finished for run in runs.values()] == [True, False]
    assert set(summarise(contest, PROMPTS, runs).methods) == {"vanilla"}


def test_warm_up_runs_a_few_cycles_of_each_method(contest: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the warm-up decodes a whole text, or leaves a method cold."""
    started: list[tuple[str, list[int]]] = []
    real = Contest.cycles

    def watched(self: Contest, method: Method, prompt_ids: list[int]) -> Iterator[Cycle]:
        seen: list[int] = []
        started.append((method, seen))
        for one in real(self, method, prompt_ids):
            seen.append(len(one.emitted_ids))
            yield one

    monkeypatch.setattr(comparison.Contest, "cycles", watched)
    warm_up(contest, PROMPTS[0])
    assert [method for method, _ in started] == list(METHODS)
    assert all(len(seen) == 3 for _, seen in started)


def test_parts_are_set_against_a_clock_outside(contest: Contest) -> None:
    """Bug: the wall time is the sum of the parts, so that they always explain all of it; the prompt counts in it; the
    share upside down."""

    def slow() -> Iterator[Cycle]:
        for number in range(3):
            time.sleep(0.04)
            yield cycle(
                [number], seconds=0.03, prefill=0.0 if number else 0.01, finish="length" if number == 2 else None
            )

    cycles = tuple(clocked(slow()))
    assert [one.emitted_ids for one in cycles] == [(0,), (1,), (2,)]
    assert cycles[0].times.wall >= 0.03 and all(one.times.wall >= 0.04 for one in cycles[1:])
    timed = summarise(contest, PROMPTS, {Turn(0, 0, "vanilla"): Run(cycles)}).methods["vanilla"]
    assert timed.explained == pytest.approx(0.03 / timed.cycle_seconds.wall) and timed.explained < 0.9
    assert summarise(contest, PROMPTS, {Turn(0, 0, "vanilla"): vanilla(4.0)}).methods["vanilla"].explained is None
    assert all(one.times.wall > 0 for _, one in play(contest, PROMPTS[:1], 1))


@pytest.fixture
def in_bfloat16(contest: Contest) -> Contest:
    target = language_model(causal_lm(0, dtype=torch.bfloat16))
    return replace(contest, pair=replace(contest.pair, target=target))


def test_rows_are_fixed_where_that_makes_texts_equal(contest: Contest, in_bfloat16: Contest) -> None:
    """Bug: one row too few for the longest draft, a tree's depth for its nodes, sampled texts decoded again."""
    chain = in_bfloat16.at_fixed_rows()
    assert chain is not None and chain.settings == replace(in_bfloat16.settings, fixed_rows=4)
    tree = replace(in_bfloat16, settings=replace(in_bfloat16.settings, tree=DraftShape(3, 3, 8))).at_fixed_rows()
    assert tree is not None and tree.settings.fixed_rows == 9
    assert contest.at_fixed_rows() is None
    sampled = replace(in_bfloat16.settings, sampling=SamplingSettings(temperature=1))
    assert replace(in_bfloat16, settings=sampled).at_fixed_rows() is None


def test_texts_are_compared_at_fixed_rows(in_bfloat16: Contest) -> None:
    """Bug: a near tie in the timed runs is reported as a difference of the method; one at fixed rows is not reported; a
    check that never ended counts as equality."""
    same = {Turn(0, 0, "vanilla"): vanilla(4.0), Turn(0, 0, "trimmed"): drafted(1.0)}
    other = {Turn(0, 0, "vanilla"): vanilla(4.0), Turn(0, 0, "trimmed"): drafted(1.0, (1, 2, 3, 9))}
    exact = summarise(in_bfloat16, PROMPTS, other, same)
    assert (exact.identical, exact.fixed_rows, exact.differences) == (True, 4, ())
    assert [found.position for found in exact.timed_differences] == [3]
    wrong = summarise(in_bfloat16, PROMPTS, same, other)
    assert (wrong.identical, wrong.fixed_rows, wrong.timed_differences) == (False, 4, ())
    assert [found.position for found in wrong.differences] == [3]
    for unfinished in (None, {}, {Turn(0, 0, "vanilla"): vanilla(4.0)}):
        plain = summarise(in_bfloat16, PROMPTS, other, unfinished)
        assert (plain.identical, plain.fixed_rows) == (False, None)
        assert plain.differences == plain.timed_differences != ()
