"""Figures: plain functions from numbers to plotly figures, readable on a light and on a dark page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pages.components.text import shown
from vocabtrim_core.coverage import CoverageInterval
from vocabtrim_core.decoding.engine import Cycle, CycleTimes
from vocabtrim_core.evaluation.comparison import Method
from vocabtrim_core.evaluation.latency import HeadTiming
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.zipf import ZipfFit, log_spaced_ranks

# Far apart for every kind of colour vision, and at a contrast of 3 on the light and on the dark page (see the tests).
TEAL, ORANGE, VIOLET, BLUE = "#1b9fa1", "#d07916", "#a361c2", "#2075f5"
RED, GREEN, GREY = "#c63630", "#4a9e62", "#726f66"
COLOURS: dict[Method, str] = {"vanilla": GREY, "untrimmed": BLUE, "trimmed": TEAL}
LINES = (TEAL, VIOLET, BLUE, RED, GREEN, GREY)  # Orange is for laws and marks.
# Lines differ in more than their colour.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
FAINT = "rgba(135, 149, 154, 0.3)"
BAND = "rgba(27, 159, 161, 0.28)"
NAMES: dict[Method, str] = {"vanilla": "Vanilla", "untrimmed": "Full vocabulary", "trimmed": "Trimmed"}
PARTS = {
    "drafter_body": "drafter body",
    "drafter_head": "drafter head",
    "verification": "verification",
    "acceptance": "accept rule",
    "bookkeeping": "cache bookkeeping",
    "rest": "rest",
}
PART_COLOURS = (ORANGE, VIOLET, TEAL, BLUE, RED, GREY)
PART_PATTERNS = ("", "/", "", "\\", ".", "x")


def zipf(frequencies: Mapping[str, np.ndarray], fits: Mapping[str, ZipfFit], fitted: str, k: int) -> go.Figure:
    """Share of the text against rank, both on log axes: a line a corpus, and the laws `fits` to the corpus `fitted`.

    `frequencies` are int64[distinct], largest first.
    """
    figure = go.Figure()
    for number, (name, counts) in enumerate(frequencies.items()):
        ranks = log_spaced_ranks(len(counts))
        shares = counts[ranks - 1] / counts.sum()
        line = go.Scatter(x=ranks, y=shares, name=_escaped(name), mode="lines+markers", line=line_style(number))
        line.update(marker={"size": 5, "symbol": SYMBOLS[number % len(SYMBOLS)], "maxdisplayed": 30})
        line.update(customdata=counts[ranks - 1])
        figure.add_trace(line.update(hovertemplate="rank %{x:,}: %{customdata:,} times, %{y:.4%}<extra></extra>"))
    for (name, fit), dash in zip(fits.items(), ("dash", "dot"), strict=False):
        ends = log_spaced_ranks(fit.high, 60)
        shares = fit.counts(ends) / frequencies[fitted].sum()
        line = go.Scatter(x=ends, y=shares, name=name, mode="lines", line={"color": ORANGE, "dash": dash})
        figure.add_trace(line.update(hoverinfo="skip"))
    _mark_k(figure, k)
    figure.update_xaxes(type="log", title="rank (1 = most frequent token)", dtick=1, tickformat=",")
    figure.update_yaxes(type="log", title="share of the text", dtick=1, tickformat=".4~%")
    return finished(figure, 460)


def categories(names: Sequence[str], kept: Sequence[int], dropped: Sequence[int]) -> go.Figure:
    """Tokens of each kind that are kept and that are not, as shares of the kind."""
    figure = go.Figure()
    for label, colour, values in (("kept", TEAL, kept), ("dropped", FAINT, dropped)):
        shares = [value / max(1, a + b) for value, a, b in zip(values, kept, dropped, strict=True)]
        bar = go.Bar(x=shares, y=list(names), name=label, orientation="h", marker_color=colour, customdata=list(values))
        figure.add_trace(bar.update(hovertemplate=f"%{{y}}: %{{customdata:,}} {label} (%{{x:.1%}})<extra></extra>"))
    figure.update_xaxes(title="share of the tokens of this kind", tickformat=".0%", range=[0, 1])
    figure.update_yaxes(autorange="reversed")
    figure.update_layout(barmode="stack", bargap=0.25, legend_traceorder="normal")
    return finished(figure, 120 + 26 * len(names))


def coverage(
    curves: Mapping[str, np.ndarray],
    k: int,
    marks: Mapping[str, Mapping[float, int | None]],
    lowest: int,
    band: CoverageInterval | None = None,
) -> go.Figure:
    """Coverage against k, from `lowest`. `curves` by name, float64[V]; `marks` by name, the k that reaches each share.

    The marks of the last curve are labelled, and `band` is its interval.
    """
    figure = go.Figure()
    if band is not None and np.isfinite(band.low).all():
        around = go.Scatter(
            x=[*band.ks, *band.ks[::-1]], y=[*band.high, *band.low[::-1]], name="95% interval", mode="lines"
        )
        figure.add_trace(around.update(fill="toself", fillcolor=BAND, line_width=0, hoverinfo="skip"))
    labelled = list(curves)[-1]
    for (name, curve), colour, dash in zip(curves.items(), (GREY, TEAL), ("dash", "solid"), strict=False):
        ranks = log_spaced_ranks(len(curve))
        ranks = ranks[ranks >= min(lowest, len(curve))]
        trace = go.Scatter(x=ranks, y=curve[ranks - 1], name=name, mode="lines")
        trace.update(line={"color": colour, "width": 2.5, "dash": dash})
        figure.add_trace(trace.update(hovertemplate=f"k = %{{x:,}}: %{{y:.2%}} of the {name} text<extra></extra>"))
        reached = {share: at for share, at in marks.get(name, {}).items() if at is not None}
        points = go.Scatter(
            x=list(reached.values()),
            y=list(reached),
            mode="markers+text" if name == labelled else "markers",
            text=[f"{share:.0%}: {at:,}" for share, at in reached.items()],
            textposition="bottom right",
            marker={"color": colour, "size": 9, "symbol": "diamond"},
            showlegend=False,
            hovertemplate=f"%{{y:.0%}} of the {name} text at k = %{{x:,}}<extra></extra>",
        )
        figure.add_trace(points)
    _mark_k(figure, k)
    size = max(len(curve) for curve in curves.values())
    ends = [math.log10(max(1, lowest)), math.log10(size) + 0.2]
    figure.update_xaxes(type="log", title="k, tokens kept", dtick=1, tickformat=",", range=ends)
    figure.update_yaxes(title="share of the text covered", tickformat=".0%", range=[0, 1.03])
    return finished(figure, 440)


def head_time(timings: Sequence[HeadTiming], k: int, estimate: float) -> go.Figure:
    """Milliseconds of one head call against k; `estimate` seconds at the chosen k, cold."""
    figure = go.Figure()
    sizes = [timing.k for timing in timings]
    for name, colour, dash, spreads in (
        ("cold: after other work, as in a cycle", TEAL, "solid", [timing.cold for timing in timings]),
        ("warm: in a loop", GREY, "dash", [timing.warm for timing in timings]),
    ):
        trace = go.Scatter(x=sizes, y=[spread.median * 1e3 for spread in spreads], name=name, mode="lines+markers")
        trace.update(line={"color": colour, "dash": dash}, error_y=_error(spreads, 1e3))
        figure.add_trace(trace.update(hovertemplate="k = %{x:,}: %{y:.3f} ms<extra></extra>"))
    marker = go.Scatter(x=[k], y=[estimate * 1e3], mode="markers", name="your k", showlegend=False)
    marker.update(marker={"color": ORANGE, "size": 13, "symbol": "diamond"})
    figure.add_trace(marker.update(hovertemplate="k = %{x:,}: about %{y:.3f} ms<extra></extra>"))
    _mark_k(figure, k)
    figure.update_xaxes(type="log", title="k, rows of the head", dtick=1, tickformat=",")
    figure.update_yaxes(type="log", title="milliseconds per token", dtick="D2")
    return finished(figure, 420)


def emitted_by_cycle(runs: Mapping[Method, Sequence[Cycle]], depth: int, names: Mapping[Method, str]) -> go.Figure:
    """Tokens that each cycle yielded, one row a method; drafts are at most `depth` deep."""
    figure = make_subplots(rows=len(runs), shared_xaxes=True, vertical_spacing=0.12)
    for row, (method, cycles) in enumerate(runs.items(), start=1):
        trace = go.Bar(y=[len(cycle.emitted_ids) for cycle in cycles], x=list(range(1, len(cycles) + 1)))
        trace.update(name=_escaped(names[method]), marker_color=COLOURS[method])
        figure.add_trace(trace.update(hovertemplate="cycle %{x}: %{y} tokens<extra></extra>"), row, 1)
    figure.update_xaxes(title="cycle", row=len(runs))
    figure.update_yaxes(title="tokens", range=[0, depth + 1], dtick=1 if depth < 6 else 4)
    return finished(figure.update_layout(bargap=0.1), 320)


def time_budget(times: Mapping[Method, CycleTimes], names: Mapping[Method, str]) -> go.Figure:
    """Mean milliseconds of a cycle by what they were spent on, one bar a method."""
    figure = go.Figure()
    methods = list(times)[::-1]
    for (part, name), colour, pattern in zip(PARTS.items(), PART_COLOURS, PART_PATTERNS, strict=True):
        spent = [getattr(times[method], part) * 1e3 for method in methods]
        trace = go.Bar(x=spent, y=[_escaped(names[method]) for method in methods], name=name, orientation="h")
        trace.update(marker={"color": colour, "pattern": {"shape": pattern, "size": 6, "solidity": 0.25}})
        trace.update(hovertemplate=f"{name}: %{{x:.2f}} ms<extra></extra>")
        figure.add_trace(trace)
    figure.update_xaxes(title="milliseconds per cycle, mean")
    figure.update_layout(barmode="stack", bargap=0.35, legend_traceorder="normal")
    return finished(figure, 320)


def sparkline(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, log_y: bool, k: int) -> go.Figure:
    """A small line without axes, x on a log axis, with k marked."""
    figure = go.Figure(go.Scatter(x=x, y=y, mode="lines", line={"color": TEAL, "width": 2.5}, hoverinfo="skip"))
    figure.add_vline(x=k, line={"color": ORANGE, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(type="log", visible=False)
    figure.update_yaxes(type="log" if log_y else "linear", visible=False)
    return figure.update_layout(height=110, margin={"l": 0, "r": 0, "t": 4, "b": 4}, showlegend=False)


def share_bar(share: float) -> go.Figure:
    """A bar of which `share` is filled."""
    figure = go.Figure()
    for value, colour in ((share, TEAL), (1 - share, FAINT)):
        figure.add_trace(go.Bar(x=[value], y=[""], orientation="h", marker_color=colour, hoverinfo="skip"))
    figure.update_xaxes(visible=False, range=[0, 1])
    figure.update_yaxes(visible=False)
    margin = {"l": 0, "r": 0, "t": 34, "b": 34}
    return figure.update_layout(barmode="stack", height=110, margin=margin, showlegend=False)


def _escaped(name: str) -> str:
    """A user's name: plotly reads some HTML in labels."""
    return shown(name)


def _mark_k(figure: go.Figure, k: int) -> None:
    figure.add_vline(x=k, line={"color": ORANGE, "width": 1.5, "dash": "dot"})
    # On a log axis an annotation's place is given as the logarithm.
    figure.add_annotation(x=math.log10(k), y=1, yref="paper", yanchor="bottom", text=f"k = {k:,}", showarrow=False)


def _error(spreads: Sequence[Spread], scale: float) -> dict:
    return {
        "array": [(spread.high - spread.median) * scale for spread in spreads],
        "arrayminus": [(spread.median - spread.low) * scale for spread in spreads],
        "thickness": 1,
        "width": 3,
    }


def line_style(number: int) -> dict:
    """Colour and dashes of the n-th of several lines."""
    return {"color": LINES[number % len(LINES)], "dash": DASHES[number % len(DASHES)], "width": 2}


def finished(figure: go.Figure, height: int) -> go.Figure:
    """The look that every chart has: room for its ticks and titles, the legend above it, the tools beside it."""
    legend = {"orientation": "h", "yanchor": "bottom", "y": 1.08, "xanchor": "left", "x": 0}
    figure.update_xaxes(automargin=True, title_standoff=10)
    figure.update_yaxes(automargin=True, title_standoff=10)
    return figure.update_layout(
        height=height, margin={"l": 56, "r": 20, "t": 56, "b": 48}, legend=legend, modebar_orientation="v"
    )
