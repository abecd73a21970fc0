"""Start page: `streamlit run app.py`."""

from __future__ import annotations

import numpy as np
import streamlit as st
import torch
from plotly.graph_objects import Figure

from pages.components import charts, tokens
from pages.components.settings import Settings
from pages.components.side_by_side import Session, times_as_fast
from pages.components.state import CALIBRATE, COVERAGE, GENERATE, START, TRIM, Page, Workspace, page_setup, ready
from pages.components.text import answer, facts
from vocabtrim_core.drafters.registry import NAMES, is_at_hand
from vocabtrim_core.embedded import EMBEDDED, TARGET_NAME, is_embedded_target_ready
from vocabtrim_core.zipf import log_spaced_ranks, rank_frequency

FREQUENT = 12


def main() -> None:
    setup = page_setup(START)
    top = st.container()
    st.markdown(
        "A small **drafter** proposes tokens, and the large **target** checks them in one pass: speculative "
        "decoding. Much of the drafter's time goes into scoring every token of the vocabulary. Most tokens are rare, "
        "so VocabTrim keeps the **k** that matter. The target still decides about every token, so the text it writes "
        "does not change."
    )
    _models(setup.settings)
    workspace = ready(setup)
    side = "held_out" if workspace.has("held_out") else "calibration"
    covered = workspace.coverage(side)[workspace.k - 1]
    with top:
        answer(
            "{verdict}: keeping {k} of {size} tokens ({share}) covers {covered} of the "
            + side.replace("_", "-")
            + " text ({corpus}).",
            verdict="It works here"
            if is_at_hand(setup.settings.drafter)
            else "Counting works here, without a drafter yet",
            k=f"{workspace.k:,}",
            size=f"{workspace.ranking.vocab_size:,}",
            share=f"{workspace.k / workspace.ranking.vocab_size:.1%}",
            covered=f"{covered:.1%}",
            corpus=workspace.label,
        )
    _steps(workspace, side)


def _models(settings: Settings) -> None:
    target = TARGET_NAME if settings.target == EMBEDDED else settings.target
    rows = {
        "target": f"{target}, {_state(settings.target == EMBEDDED, is_embedded_target_ready())}",
        "drafter": f"{settings.drafter}, {_state(settings.drafter in NAMES, is_at_hand(settings.drafter))}",
        "number format": settings.dtype,
        "machine": f"CPU threads: {torch.get_num_threads()}, torch {torch.__version__}",
    }
    st.html(facts(rows))


def _state(comes_with_it: bool, ready_here: bool) -> str:
    if not comes_with_it:
        return "loaded when a page needs it"
    return "ready" if ready_here else "not on this machine yet"


def _steps(workspace: Workspace, side: str) -> None:
    counts, ranking, k = workspace.corpus.counts, workspace.ranking, workspace.k
    frequencies, curve = rank_frequency(counts.total), workspace.coverage(side)
    columns = st.columns(4, gap="medium")
    with columns[0].container(border=True, height="stretch"):
        _step(1, "Count", f"{counts.tokens:,} tokens, {counts.distinct:,} different ones. Few do most of the work.")
        ranks = log_spaced_ranks(len(frequencies), 120)
        _small(charts.sparkline(ranks, frequencies[ranks - 1], True, k), "frequency against rank")
        _link(CALIBRATE, workspace)
    with columns[1].container(border=True, height="stretch"):
        _step(
            2,
            "Rank",
            f"The first {k:,} tokens of the ranking cover {curve[k - 1]:.1%} of {side.replace('_', '-')} text.",
        )
        ranks = log_spaced_ranks(len(curve), 120)
        ranks = ranks[ranks >= ranking.forced]
        _small(charts.sparkline(ranks, curve[ranks - 1], False, k), "coverage against k")
        _link(COVERAGE, workspace)
    with columns[2].container(border=True, height="stretch"):
        _step(
            3, "Trim", f"{k:,} of {ranking.vocab_size:,} rows of the drafter's head stay: {k / ranking.vocab_size:.1%}."
        )
        _small(charts.share_bar(k / ranking.vocab_size), "rows kept")
        _link(TRIM, workspace)
    with columns[3].container(border=True, height="stretch"):
        _step(4, "Generate", _last_run())
        st.html(tokens.legend(("accepted", "rejected", "correction", "bonus")))
        _link(GENERATE, workspace)
    st.caption("The most frequent tokens of this text:")
    first = np.argsort(-counts.total, kind="stable")[:FREQUENT]
    st.html(tokens.list_chips(workspace.tokenizer, first.tolist(), [f"{counts.total[one]:,} times" for one in first]))


def _last_run() -> str:
    session: Session | None = st.session_state.get("_side_by_side")
    trimmed = session.comparison.methods.get("trimmed") if session and session.comparison else None
    if session is None or trimmed is None or trimmed.speedup_vs_vanilla is None:
        return "The target accepts, corrects and adds. Its text stays the same; the speed is measured."
    speed = times_as_fast(trimmed.speedup_vs_vanilla)
    return f"Your last run: {trimmed.acceptance_length:.2f} tokens a target pass, {speed} vanilla's speed."


def _step(number: int, name: str, text: str) -> None:
    st.subheader(f"{number}. {name}", anchor=False)
    st.write(text)


def _small(figure: Figure, alt: str) -> None:
    st.plotly_chart(figure, alt=alt, config={"displayModeBar": False, "staticPlot": True})


def _link(page: Page, workspace: Workspace) -> None:
    query = workspace.settings.to_query()
    st.space("stretch")
    st.page_link(page.path, label=page.label, icon=page.icon, query_params=query)


main()
