"""Vanilla, full-vocabulary and trimmed decoding side by side: what a session has run, and how it is shown."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

import pandas as pd
import streamlit as st
import torch

from pages.components import charts, tables, tokens
from pages.components.settings import Settings
from pages.components.text import answer, facts, plain, shown
from vocabtrim_core.decoding.context import context_notes
from vocabtrim_core.decoding.engine import Cycle
from vocabtrim_core.engines import EngineNote
from vocabtrim_core.evaluation.bandwidth import Bandwidth, bound_of
from vocabtrim_core.evaluation.comparison import (
    METHODS,
    Comparison,
    Contest,
    Difference,
    Method,
    Run,
    Turn,
    drafted_lengths,
    play,
    summarise,
    warm_up,
)
from vocabtrim_core.evaluation.contention import disagree, moment, others_since
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.tokenization import Tokenizer

MEANINGS = {
    "drafted": "Tokens drafted in a cycle, on average: the length of a chain, the nodes of a tree.",
    "acceptance length": "Tokens that one pass of the target yields, the target's own included.",
    "acceptance rate": "Accepted of the tokens that could have been: of a tree, those on its longest path.",
    "rejections (outside k)": "Cycles that ended in a rejection; in brackets, where the drafter lacks the token.",
}
# A smaller difference of the target's logits is within the rounding of the number format.
NEAR_TIE = {"float32": 1e-3, "float16": 1e-3, "bfloat16": 0.5}


@dataclass
class Session:
    """A comparison of one prompt, growing while it runs. `comparison` is there once a method has finished a run."""

    contest: Contest
    settings: Settings
    prompt: str
    prompt_ids: list[int]
    cycles: dict[Turn, list[Cycle]] = field(default_factory=dict)
    at_fixed_rows: dict[Turn, list[Cycle]] = field(default_factory=dict)
    complete: bool = False
    comparison: Comparison | None = None
    others: float | None = None  # processors that other programs used meanwhile

    @property
    def number_format(self) -> str:
        return self.contest.pair.target.number_format

    @property
    def tokenizer(self) -> Tokenizer:
        return self.contest.pair.tokenizer

    def shown(self, method: Method) -> list[Cycle]:
        """The cycles of the run that is shown token by token: the first."""
        return self.cycles.get(Turn(0, 0, method), [])

    def drafted_a_cycle(self, method: Method) -> float:
        """How many tokens a cycle drafted, on average over the finished runs: nodes, where they are trees."""
        runs = [cycles for turn, cycles in self.cycles.items() if turn.method == method and cycles[-1].finish]
        return fmean(len(cycle.drafted_ids) for cycles in runs for cycle in cycles)

    def run(self, on_cycle: Callable[[Turn], None], on_check: Callable[[Turn], None] = lambda turn: None) -> None:
        """Decode everything, then once more at fixed rows where texts are compared so; whatever interrupts it leaves
        what was decoded so far.

        After a click the page already runs again, in another thread, while this one is still inside a cycle. So no
        dictionary grows that a reader may be going through.
        """
        warm_up(self.contest, self.prompt_ids)
        began = moment()
        for turn, cycle in play(self.contest, [self.prompt_ids], self.settings.repeats):
            self.cycles = _grown(self.cycles, turn, cycle)
            on_cycle(turn)
        self.others = others_since(began)
        fixed = self.contest.at_fixed_rows()
        for turn, cycle in play(fixed, [self.prompt_ids], 1) if fixed else ():
            self.at_fixed_rows = _grown(self.at_fixed_rows, turn, cycle)
            on_check(turn)
        self.complete = True

    def summarise(self) -> Comparison | None:
        """The figures of the finished runs, worked out once."""
        runs, exact = (
            {turn: Run(tuple(cycles)) for turn, cycles in found.items()} for found in (self.cycles, self.at_fixed_rows)
        )
        if self.comparison is None and any(run.finished for run in runs.values()):
            # Of the check all or nothing: some of its methods do not speak for the others.
            self.comparison = summarise(self.contest, [self.prompt_ids], runs, exact if self.complete else None)
        return self.comparison


def _grown(cycles: dict[Turn, list[Cycle]], turn: Turn, cycle: Cycle) -> dict[Turn, list[Cycle]]:
    """With one more cycle: in a new dictionary where the turn is new, in the turn's own list otherwise."""
    if turn not in cycles:
        return {**cycles, turn: [cycle]}
    cycles[turn].append(cycle)
    return cycles


def chips(session: Session, method: Method, running: bool = False) -> str:
    """One method's column as HTML."""
    cycles = session.shown(method)
    if not cycles:
        return f'<div class="vt-wait">{"waiting" if running else "stopped before its turn"}</div>'
    parts = [one.position for one in _timed_differences(session) if one.method == method]
    body = tokens.decoded_chips(cycles, session.tokenizer, session.prompt_ids[-1:], parts[0] if parts else None)
    run = Run(tuple(cycles))
    unfinished = "so far" if running else "stopped here"
    finish = {"eos": "ended by itself", "length": "cut at the limit", "stop string": "stop string", None: unfinished}
    state = f"{len(run.token_ids):,} tokens in {len(cycles):,} target passes, {finish[cycles[-1].finish]}"
    return f'{body}<div class="vt-muted vt-card">{html.escape(state)}</div>'


def _timed_differences(session: Session) -> tuple[Difference, ...]:
    return session.comparison.timed_differences if session.comparison else ()


def sentence(session: Session, comparison: Comparison) -> None:
    """The page's answer: faster or slower, and whether the text is the same."""
    if session.contest.ranked_head is None:
        _sentence_without_head(session, comparison)
        return
    trimmed = comparison.methods.get("trimmed")
    if trimmed is None or trimmed.speedup_vs_vanilla is None or trimmed.speedup_vs_untrimmed is None:
        answer("Stopped before the trimmed drafter had finished, so there is no speed to compare yet.")
        return
    vanilla, full = trimmed.speedup_vs_vanilla, trimmed.speedup_vs_untrimmed
    if any(disagree(one.low, one.high) for one in (vanilla, full)):
        template = (
            "The repeats disagree too much for a verdict: with k\u00a0=\u00a0{k} the trimmed drafter has "
            "{over_vanilla} the speed of vanilla and {over_full} that of the full vocabulary. "
        )
    else:
        template = (
            "With k\u00a0=\u00a0{k} the trimmed drafter is {vanilla} than vanilla ({over_vanilla}) and {full} than the "
            "drafter with its full vocabulary ({over_full}). "
        )
    answer(
        template + _sameness(comparison),
        k=f"{session.contest.k:,}",
        vanilla=_verdict(vanilla),
        over_vanilla=times_as_fast(vanilla),
        full=_verdict(full),
        over_full=times_as_fast(full),
        same="identical" if comparison.identical else "not identical",
        token=f"token {min(one.position for one in comparison.timed_differences) + 1:,}"
        if comparison.timed_differences
        else "",
    )


def _sameness(comparison: Comparison) -> str:
    """What is known of the texts: of those that were timed and are shown, and of those at fixed rows."""
    if comparison.identical is None:
        return "Sampled texts differ from run to run by design; their distribution is the target's."
    if comparison.fixed_rows is None:
        if comparison.identical:
            return "All texts are {same}, token for token."
        return "The texts are {same}: see where they part below."
    exact = "decoded again with every pass of one size they are {same}"
    exact += ", token for token, bit for bit." if comparison.identical else "."
    if comparison.timed_differences:
        return f"As timed, the texts part at {{token}}; {exact}"
    if comparison.identical:
        return "All texts are {same} as timed, and again with every pass of one size: token for token, bit for bit."
    return f"As timed, all texts are the same; {exact}"


def _sentence_without_head(session: Session, comparison: Comparison) -> None:
    lookup = comparison.methods.get("untrimmed")
    if lookup is None or lookup.speedup_vs_vanilla is None:
        answer("Stopped before the drafter had finished, so there is no speed to compare yet.")
        return
    answer(
        "{name} is {vanilla} than vanilla ({over_vanilla}). It has no head, so there is nothing to trim.",
        name=name(session, "untrimmed"),
        vanilla=_verdict(lookup.speedup_vs_vanilla),
        over_vanilla=times_as_fast(lookup.speedup_vs_vanilla),
    )


def name(session: Session | None, method: Method) -> str:
    """How a method is called: one of a drafter without a head by the drafter's name."""
    if session is None or method == "vanilla" or session.contest.ranked_head is not None:
        return charts.NAMES[method]
    return session.contest.pair.drafter.name.capitalize()


def _verdict(speedup: Spread) -> str:
    word = "faster" if speedup.median > 1 else "SLOWER"
    return word if not speedup.low < 1 < speedup.high else f"{word} on median, though not in every repeat,"


def times_as_fast(speedup: Spread) -> str:
    spread = "" if speedup.low == speedup.high else f", {speedup.low:.2f} to {speedup.high:.2f}"
    return f"{speedup.median:.2f}×{spread}"


def figures(session: Session, comparison: Comparison) -> None:
    """The table of all methods."""
    rows = []
    for method, one in comparison.methods.items():
        speed = one.tokens_per_second
        rate = "" if one.acceptance_rate is None else f"{one.acceptance_rate:.1%}"
        rows.append(
            {
                "method": name(session, method),
                "tokens/s": f"{speed.median:.1f}"
                + (f" ({speed.low:.1f} to {speed.high:.1f})" if speed.low < speed.high else ""),
                "vs vanilla": times_as_fast(one.speedup_vs_vanilla) if one.speedup_vs_vanilla else "1",
                "vs full vocabulary": times_as_fast(one.speedup_vs_untrimmed) if one.speedup_vs_untrimmed else "",
                "drafted": "" if method == "vanilla" else f"{session.drafted_a_cycle(method):.1f}",
                "acceptance length": f"{one.acceptance_length:.2f}",
                "acceptance rate": rate,
                "rejections (outside k)": f"{one.rejections:,} ({one.out_of_vocabulary:,})" if rate else "",
                "prompt": f"{one.prefill_seconds * 1e3:,.0f} ms",
            }
        )
    st.html(tables.table(pd.DataFrame(rows), MEANINGS))
    asked, count = session.settings, comparison.repeats
    how = "greedy" if asked.temperature == 0 else f"temperature {asked.temperature:g}"
    if count > 1:
        spread = f"Speeds are the median of {count} interleaved repeats, with the lowest and the highest."
    elif asked.repeats > 1:
        spread = f"The run was stopped in the first of {asked.repeats} repeats, so these speeds have no spread."
    else:
        spread = "Speeds were measured once; choose more repeats in the sidebar to see their spread."
    kept = f"k = {session.contest.k:,}, " if session.contest.k else ""
    drafts = f"trees of {asked.tree} (depth, top-k, nodes)" if asked.tree else f"gamma = {asked.gamma}"
    st.caption(
        f"{spread} {kept}{drafts}, {session.number_format}, {how}, at most "
        f"{asked.max_new_tokens:,} new tokens, CPU threads: {torch.get_num_threads()}. Prompt time is apart."
    )
    if note := session.contest.pair.target.format_note:
        st.caption(plain(note))


def context(session: Session) -> None:
    """Says so where the drafter's context ended before the text did."""
    runs = {turn: Run(tuple(cycles)) for turn, cycles in session.cycles.items()}
    for note in context_notes(session.contest.pair.drafter, drafted_lengths([session.prompt_ids], runs)):
        st.info(plain(note))


def identity(session: Session, comparison: Comparison) -> None:
    """How the texts were compared, and where they part, if they do."""
    rows = comparison.fixed_rows
    if rows is not None:
        found = "differ" if comparison.differences else "are identical, bit for bit"
        st.caption(
            f"Decoded once more with {rows} rows in every target pass, so that a token's logits have the same bits in "
            f"a draft and alone, all texts {found}. The speeds are of passes with no spare rows."
        )
        _first_differences(session, comparison.differences, f"at {rows} rows, ")
    _first_differences(session, comparison.timed_differences, "" if rows is None else "as timed, ")


def _first_differences(session: Session, differences: tuple[Difference, ...], how: str) -> None:
    first: dict[Method, Difference] = {}
    for difference in differences:
        first.setdefault(difference.method, difference)
    for method, difference in first.items():
        ours, theirs = (_named(session.tokenizer, token) for token in (difference.vanilla_id, difference.other_id))
        where = f"{how}parts from vanilla at token {difference.position + 1:,}"
        text = f"{name(session, method)}: {where}, {theirs} against {ours}"
        margin = difference.logit_margin
        if margin is not None:
            near = abs(margin) <= NEAR_TIE[session.number_format]
            apart = "equal" if round(abs(margin), 4) == 0 else f"{abs(margin):.4f} apart"
            text += f". The target's logits of the two are {apart}"
            text += (
                f": a near tie in {session.number_format}, where the order of summing decides."
                if near
                else ", which is more than rounding explains. Please report it."
            )
        st.html(f'<div class="vt-note">{shown(text)}</div>')


def _named(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "the end of the text" if token_id is None else f"“{tokens.token_text(tokenizer, token_id)}” (id {token_id})"


def details(session: Session, comparison: Comparison, bandwidth: Bandwidth) -> None:
    """Accepted length by cycle, where the time went, and how near to the memory's limit the target runs."""
    names = {method: name(session, method) for method in METHODS}
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Tokens emitted by each cycle", anchor=False)
        runs = {method: session.shown(method) for method in METHODS[1:] if session.shown(method)}
        depth = session.settings.generation.shape.depth
        st.plotly_chart(charts.emitted_by_cycle(runs, depth, names), alt="Tokens emitted by each cycle")
    with right:
        st.subheader("Where a cycle's time goes", anchor=False)
        times = {method: one.cycle_seconds for method, one in comparison.methods.items()}
        shares = [one.explained for one in comparison.methods.values() if one.explained is not None]
        st.plotly_chart(charts.time_budget(times, names), alt="Time of a cycle by part")
        st.caption(
            "The drafter's head counts with softmax, filters and choosing; verification is the target's pass with its "
            "head; cache bookkeeping is forgetting what was refused."
            + (f" The parts explain at least {min(1.0, *shares):.1%} of the wall time." if shares else "")
        )
        _limit(session, comparison, bandwidth)


def _limit(session: Session, comparison: Comparison, bandwidth: Bandwidth) -> None:
    """Which engines ran, and the bound: the time to read the target's weights once."""
    pair = session.contest.pair
    vanilla = comparison.methods.get("vanilla")
    rows = {"target's engine": _engine(pair.target.engine), "drafter's engine": _engine(pair.drafter.engine)}
    st.html(facts(rows))
    if vanilla is None:
        return
    bound = bound_of(pair.target, bandwidth, vanilla.cycle_seconds.verification)
    st.caption(
        f"A target pass reads {bound.weight_bytes / 1e6:,.0f} MB of weights, which takes at least "
        f"{bound.seconds * 1e3:.1f} ms at the {bound.bandwidth / 1e9:.1f} GB/s measured on this machine; vanilla's "
        f"takes {bound.measured_seconds * 1e3:.1f} ms: an efficiency of {bound.efficiency:.0%}."
    )


def _engine(engine: EngineNote) -> str:
    return f"{engine.name}: {engine.reason}"
