"""The shape lab: what trimming might give for drafters whose weights are not here."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from pages.components import tables, tune_charts
from pages.components.resources import machine_to_itself
from pages.components.text import errors_shown
from vocabtrim_core.evaluation.papers import PUBLISHED
from vocabtrim_core.evaluation.shapes import SHAPES, Shape, ShapeEstimate, measure_shape

TYPED = "Typed in"


def shape_lab() -> None:
    """Choose a shape, time its head here, and show what a paper's acceptance would make of it."""
    st.subheader("Shape lab: estimate drafters you do not have", anchor=False)
    state = st.session_state
    row = st.columns([2, 2, 1], gap="medium", vertical_alignment="bottom")
    names = [shape.name for shape in SHAPES] + [TYPED]
    name = row[0].selectbox("Drafter", names, key="shape_name")
    table = row[1].selectbox(
        "Acceptance as published for",
        PUBLISHED,
        format_func=lambda one: f"{one.source}, {one.setting}",
        key="shape_table",
    )
    gamma = row[2].slider("Tokens drafted", 1, 10, 5, key="shape_gamma")
    if name == TYPED:
        cells = st.columns(4)
        hidden = cells[0].number_input("Hidden size", 8, 32_768, 4096, key="shape_hidden")
        vocab = cells[1].number_input("Vocabulary", 64, 1_000_000, 128_256, key="shape_vocab")
        body = cells[2].number_input("Drafter's body, million parameters", 1, 100_000, 250, key="shape_body")
        target = cells[3].number_input("Target, million parameters", 1, 2_000_000, 8_000, key="shape_target")
    pressed = st.button("Measure this shape", key="shape_run", icon=":material/science:")
    if pressed:
        with errors_shown(), machine_to_itself(), st.spinner("Timing a head of random weights"):
            shape = next((one for one in SHAPES if one.name == name), None)
            if shape is None:
                shape = Shape(TYPED, int(hidden), int(vocab), int(body) * 10**6, int(target) * 10**6)
            state["_shape"] = measure_shape(shape, table, gamma)
    found: ShapeEstimate | None = state.get("_shape")
    if found is None:
        st.caption(
            "Times a head of the real size, with random weights, on this machine. What trimming would give is then an "
            "estimate from a paper's acceptance."
        )
        return
    shape = found.shape
    best = max(range(len(found.ks)), key=lambda i: found.speedup[i])
    st.warning(
        f"An estimate, not a measurement: {shape.name}, head {shape.hidden:,} × {shape.vocab:,} in bfloat16. Only the "
        f"head was timed here. The drafter's body ({found.body_seconds * 1e3:.1f} ms) and the target's pass "
        f"({found.target_seconds * 1e3:.0f} ms) are taken to read their weights at the head's rate, and acceptance is "
        f"that of {found.table.source}, {found.table.setting}. With {found.gamma} tokens drafted the best of these k "
        f"is {found.ks[best]:,}: about {found.over_untrimmed[best]:.2f} times the speed of the full vocabulary.",
        icon=":material/science:",
    )
    left, right = st.columns(2, gap="large")
    left.caption("Head time, measured here")
    left.plotly_chart(tune_charts.shape_head(found), alt="Head time against k")
    right.caption("Speed against the full vocabulary, estimated")
    right.plotly_chart(tune_charts.shape_speed(found), alt="Estimated speedup against k")
    rows = {
        "k": [f"{k:,}" for k in found.ks],
        "head, ms (measured)": [f"{one.cold.median * 1e3:.2f}" for one in found.timings],
        "acceptance length (published, interpolated)": [f"{tau:.2f}" for tau in found.tau],
        "vs vanilla (estimate)": [f"{one:.2f}×" for one in found.speedup],
        "vs full vocabulary (estimate)": [f"{one:.2f}×" for one in found.over_untrimmed],
    }
    st.html(tables.table(pd.DataFrame(rows)))
