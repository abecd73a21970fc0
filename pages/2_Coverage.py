"""How much of the text the first k tokens of the ranking cover."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from pages.components import charts, tokens
from pages.components.state import COVERAGE, Workspace, page_setup, ready
from pages.components.text import answer, errors_shown
from vocabtrim_core.zipf import k_for_coverage

SHARES = (0.90, 0.95, 0.99)
SIDES = {"calibration": "calibration", "held-out": "held_out"}
MISSING_SHOWN = 40


def main() -> None:
    workspace = ready(page_setup(COVERAGE))
    with errors_shown():
        counts = workspace.corpus.counts
        sides = {name: side for name, side in SIDES.items() if getattr(counts, side).any()}
        if not sides:
            st.info("These counts are empty. Choose another corpus in the sidebar.", icon=":material/info:")
            st.stop()
        curves = {name: workspace.coverage(side) for name, side in sides.items()}
        reached = {name: {share: k_for_coverage(curve, share) for share in SHARES} for name, curve in curves.items()}
        _sentence(workspace, curves, reached)
        _warnings(workspace, curves)
        st.plotly_chart(
            charts.coverage(curves, workspace.k, reached, workspace.ranking.forced),
            alt="Coverage of the text against k",
        )
        left, right = st.columns(2, gap="large")
        with left:
            _tables(workspace, curves, reached)
        with right:
            _missing(workspace, next(reversed(sides.values())), next(reversed(sides)))


def _sentence(workspace: Workspace, curves: dict[str, np.ndarray], reached: dict[str, dict[float, int | None]]) -> None:
    k, name = workspace.k, next(reversed(curves))
    needed = reached[name][0.99]
    template = "{corpus}: k\u00a0=\u00a0{k} covers {share} of the " + name + " text"
    if len(curves) == 2:
        template += " and {seen} of the calibration text"
    template += "; for 99% you need k\u00a0=\u00a0{needed}." if needed else "; no k reaches 99%."
    answer(
        template,
        k=f"{k:,}",
        share=f"{curves[name][k - 1]:.2%}",
        corpus=workspace.corpus.label,
        seen=f"{next(iter(curves.values()))[k - 1]:.2%}",
        needed=f"{needed:,}" if needed else "",
    )


def _warnings(workspace: Workspace, curves: dict[str, np.ndarray]) -> None:
    ranking, k = workspace.ranking, workspace.k
    if k > ranking.observed:
        st.warning(
            f"Only {ranking.observed:,} tokens are forced or were counted in the calibration text. The other "
            f"{k - ranking.observed:,} of your k = {k:,} are filler, taken in order of their ids: count more text, or "
            "choose a smaller k.",
            icon=":material/warning:",
        )
    if "held-out" not in curves:
        st.warning(
            "Nothing was held out of these counts, so this is coverage of the very text that the ranking was made "
            "from, which flatters it. Count again with a held-out share.",
            icon=":material/warning:",
        )
    st.caption(
        "Coverage of text overstates what a drafter keeps: the rare tokens it lacks sit where the target is hardest to "
        "follow anyway, or break a draft that would have gone on. The acceptance on the page Generate is what counts."
    )


def _tables(workspace: Workspace, curves: dict[str, np.ndarray], reached: dict[str, dict[float, int | None]]) -> None:
    st.subheader("k for a coverage", anchor=False)
    goals = {"coverage": [f"{share:.0%}" for share in SHARES]}
    goals |= {f"k, {name}": [f"{k:,}" if k else "not reached" for k in row.values()] for name, row in reached.items()}
    st.dataframe(pd.DataFrame(goals), hide_index=True)
    st.subheader("Coverage for a k", anchor=False)
    size = workspace.ranking.vocab_size
    sizes = sorted({workspace.k, size, *(k for k in (1024, 2048, 4096, 8192, 16384, 32768, 65536) if k < size)})
    table = {"k": [f"{k:,}{' (yours)' if k == workspace.k else ''}" for k in sizes]}
    table |= {"of the vocabulary": [f"{k / size:.1%}" for k in sizes]}
    table |= {name: [f"{curve[k - 1]:.2%}" for k in sizes] for name, curve in curves.items()}
    st.dataframe(pd.DataFrame(table), hide_index=True)


def _missing(workspace: Workspace, side: str, name: str) -> None:
    st.subheader("What your k misses most", anchor=False)
    counts = getattr(workspace.corpus.counts, side)
    left_out = workspace.ranking.ids[workspace.k :]
    worst = left_out[np.argsort(-counts[left_out], kind="stable")][:MISSING_SHOWN]
    worst = worst[counts[worst] > 0]
    missed = int(counts[left_out].sum())
    if not missed:
        st.write(f"Nothing: every token of the {name} text is inside your k.")
        return
    st.write(
        f"{missed:,} of {int(counts.sum()):,} {name} tokens are outside, {np.count_nonzero(counts[left_out]):,} "
        "different ones. The most frequent of them:"
    )
    notes = [f"{counts[token]:,} times in the {name} text" for token in worst]
    st.html(tokens.list_chips(workspace.tokenizer, worst.tolist(), notes))


main()
