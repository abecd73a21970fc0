"""What the drafter's head costs at k, and what it keeps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st
import torch

from pages.components import charts, tokens
from pages.components.resources import categories_of, head_timings
from pages.components.state import TRIM, Models, Workspace, load_models, page_setup, ready
from pages.components.tables import table
from pages.components.text import answer, errors_shown, megabytes, plain
from vocabtrim_core.categories import Category
from vocabtrim_core.evaluation.contention import doubt
from vocabtrim_core.evaluation.latency import HeadTiming
from vocabtrim_core.heads import RankedHead

NEIGHBOURS = 24


def main() -> None:
    workspace = ready(page_setup(TRIM))
    with errors_shown():
        models = load_models(workspace)
        head = models.head
        if head is None:
            answer("This drafter has no head: it copies from the text so far, so there is nothing to trim.")
            return
        sentence = st.container()
        figures = st.container()
        timed = _timings(models, head)
        if timed is None:
            with sentence:
                answer("The head has not been timed on this machine: that was cancelled.")
            st.button("Measure", key="measure_again", icon=":material/timer:")
            st.stop()
        timings, others = timed
        times = {k: _time_at(timings, k) for k in (models.k, head.vocab_size)}
        with sentence:
            _sentence(models.k, head, times)
            if doubt(others):
                st.warning(doubt(others), icon=":material/speed:")
        with figures:
            _figures(models, head)
        _chart(models, timings, times[models.k])
        _kinds(workspace, models)
        _tokens(workspace, models)


def _timings(models: Models, head: RankedHead) -> tuple[list[HeadTiming], float | None] | None:
    key = (*models.key, models.ranking.digest, str(torch.get_num_threads()))
    return head_timings(key, head, again=bool(st.session_state.get("measure_again")))


def _time_at(timings: list[HeadTiming], k: int) -> float:
    """Seconds of a cold call at k, between the measured sizes by a straight line on log axes."""
    sizes, medians = [timing.k for timing in timings], [timing.cold.median for timing in timings]
    return float(np.exp(np.interp(np.log(k), np.log(sizes), np.log(medians))))


def _sentence(k: int, head: RankedHead, times: dict[int, float]) -> None:
    full = head.vocab_size
    answer(
        "At k\u00a0=\u00a0{k} the head reads {kept} instead of {whole} per token ({share}) and takes about {time} "
        "instead of {before} on this machine, {verdict}.",
        k=f"{k:,}",
        kept=megabytes(head.bytes_kept(k)),
        whole=megabytes(head.bytes_kept(full)),
        share=f"{k / full:.1%}",
        time=f"{times[k] * 1e3:.2f} ms",
        before=f"{times[full] * 1e3:.2f} ms",
        verdict=f"{times[full] / times[k]:.1f} times as fast" if times[k] < times[full] else "no faster",
    )


def _figures(models: Models, head: RankedHead) -> None:
    k, body = models.k, models.pair.drafter.parameters
    full = head.vocab_size

    def parameters(rows: int) -> int:
        return rows * (head.hidden_size + (head.bias is not None))

    rows = pd.DataFrame(
        {
            "": ["rows", "parameters of the head", "bytes read per pass", "share of the drafter's parameters"],
            "full head": [
                f"{full:,}",
                f"{parameters(full):,}",
                megabytes(head.bytes_kept(full)),
                f"{parameters(full) / (parameters(full) + body):.1%}",
            ],
            f"k = {k:,}": [
                f"{k:,}",
                f"{parameters(k):,}",
                megabytes(head.bytes_kept(k)),
                f"{parameters(k) / (parameters(k) + body):.1%}",
            ],
            "saved": [
                f"{1 - k / full:.1%}",
                f"{parameters(full) - parameters(k):,}",
                megabytes(head.bytes_kept(full) - head.bytes_kept(k)),
                "",
            ],
        }
    )
    st.html(table(rows))
    st.caption(
        f"The drafter's body has {body:,} parameters without its input embeddings, of which a pass reads one row a "
        "token. The rows are kept in the order of the ranking, so trimming is taking the first k of them: moving "
        "k copies nothing. Decoding then packs a copy of those k rows where the processor reads it faster."
    )


def _chart(models: Models, timings: list[HeadTiming], estimate: float) -> None:
    title, button = st.columns([4, 1], vertical_alignment="bottom")
    title.subheader("Time of one head call, one token", anchor=False)
    button.button("Measure again", key="measure_again", icon=":material/timer:", width="stretch")
    st.plotly_chart(charts.head_time(timings, models.k, estimate), alt="Head time against k")
    st.caption(
        f"Median of nine rounds with the lowest and the highest; {models.pair.drafter.name}, "
        f"{models.pair.target.number_format}, CPU threads: {torch.get_num_threads()}. "
        "The diamond is read off the line at your k."
    )


def _kinds(workspace: Workspace, models: Models) -> None:
    """What is kept and dropped, by what the tokens spell."""
    st.subheader("What is kept, by kind", anchor=False)
    kinds = categories_of(workspace.tokenizer.fingerprint, workspace.tokenizer)
    ids, counts = models.ranking.ids, workspace.corpus.counts.total
    kept, dropped = (np.bincount(kinds[part], minlength=len(Category)) for part in (ids[: models.k], ids[models.k :]))
    text = np.bincount(kinds[ids], weights=counts[ids], minlength=len(Category))
    covered = np.bincount(kinds[ids[: models.k]], weights=counts[ids[: models.k]], minlength=len(Category))
    there = sorted((kind for kind in Category if kept[kind] + dropped[kind]), key=lambda kind: -kept[kind])
    figure = charts.categories([kind.label for kind in there], kept[there].tolist(), dropped[there].tolist())
    st.plotly_chart(figure, alt="Share of the tokens of each kind that is kept")
    rows = {
        "kind": [kind.label for kind in there],
        "kept": [f"{kept[kind]:,}" for kind in there],
        "of": [f"{kept[kind] + dropped[kind]:,}" for kind in there],
        "share of the text": [f"{text[kind] / max(1, text.sum()):.1%}" for kind in there],
        "of that covered": [f"{covered[kind] / text[kind]:.1%}" if text[kind] else "" for kind in there],
    }
    st.html(table(pd.DataFrame(rows)))
    st.caption(f"The text is {plain(workspace.corpus.label)}.")


def _tokens(workspace: Workspace, models: Models) -> None:
    k, ids, counts = models.k, models.ranking.ids, workspace.corpus.counts.calibration
    left, right = st.columns(2, gap="large")

    def chips(chosen: np.ndarray) -> str:
        notes = [f"{counts[token] if token < len(counts) else 0:,} times in the calibration text" for token in chosen]
        return tokens.list_chips(workspace.tokenizer, chosen.tolist(), notes)

    with left:
        st.subheader(f"Always kept: {models.ranking.forced} forced or pinned tokens", anchor=False)
        st.caption("Control tokens and ends of text, so that a trimmed drafter can end a text, and what you pinned.")
        st.html(chips(ids[: models.ranking.forced]))
    with right:
        st.subheader(f"Where k = {k:,} cuts", anchor=False)
        st.caption("Last kept")
        st.html(chips(ids[max(models.ranking.forced, k - NEIGHBOURS) : k]) if k > models.ranking.forced else "<p>—</p>")
        st.caption("First dropped")
        st.html(chips(ids[k : k + NEIGHBOURS]) if k < len(ids) else "<p>None: this k keeps every token.</p>")


main()
