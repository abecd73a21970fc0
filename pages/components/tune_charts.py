"""Figures of the page Tune."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pages.components.charts import BAND, GREY, LINES, ORANGE, TEAL, VIOLET
from vocabtrim_core.evaluation.measuring import Measured
from vocabtrim_core.evaluation.profile import LatencyProfile
from vocabtrim_core.evaluation.shapes import ShapeEstimate
from vocabtrim_core.evaluation.tuning import Prediction, Recommendation

TICKS = [2**i for i in range(5, 20)]


def heat_map(prediction: Prediction, best: Recommendation) -> go.Figure:
    """Predicted speedup against vanilla over gamma (rows) and k (columns); below 1 it is orange."""
    ks = np.array(prediction.ks)
    notes = [
        [
            f"k = {k:,}, gamma = {gamma}: {prediction.speedup[row, column]:.2f}x "
            f"({prediction.low[row, column]:.2f} to {prediction.high[row, column]:.2f}), "
            f"{prediction.tau[row, column]:.2f} tokens a pass"
            for column, k in enumerate(prediction.ks)
        ]
        for row, gamma in enumerate(prediction.gammas)
    ]
    reach = max(0.02, float(np.abs(prediction.speedup - 1).max()))
    heat = go.Heatmap(
        z=prediction.speedup,
        x=list(range(len(ks))),
        y=list(prediction.gammas),
        zmin=1 - reach,
        zmax=1 + reach,
        customdata=notes,
        hovertemplate="%{customdata}<extra></extra>",
        colorscale=[[0, ORANGE], [0.5, "#d9d9d4"], [1, TEAL]],
        colorbar={"title": "speedup", "thickness": 12},
    )
    figure = go.Figure(heat)
    _, column = prediction.at(best.k, best.gamma)
    mark = go.Scatter(x=[column], y=[best.gamma], mode="markers", hoverinfo="skip", showlegend=False)
    figure.add_trace(mark.update(marker={"symbol": "circle-open", "size": 16, "color": "#1c1c1c", "line_width": 3}))
    places = [int(np.abs(np.log(ks / tick)).argmin()) for tick in TICKS if ks[0] <= tick < 0.8 * ks[-1]]
    texts = [f"{ks[place]:,}" for place in places] + ["full"]
    figure.update_xaxes(title="k, tokens kept", tickvals=[*places, len(ks) - 1], ticktext=texts)
    figure.update_yaxes(title="gamma", dtick=1)
    return _finished(figure, 120 + 34 * max(4, len(prediction.gammas)))


def curve(prediction: Prediction, gamma: int, k: int, measured: Sequence[Measured]) -> go.Figure:
    """Predicted speedup against k at one gamma with its interval, the measured points, and the modelled MBSU."""
    row = prediction.gammas.index(gamma)
    ks = prediction.ks
    figure = go.Figure()
    band = go.Scatter(x=[*ks, *ks[::-1]], y=[*prediction.high[row], *prediction.low[row][::-1]], mode="lines")
    figure.add_trace(band.update(name="95 % interval", fill="toself", fillcolor=BAND, line_width=0, hoverinfo="skip"))
    line = go.Scatter(x=ks, y=prediction.speedup[row], name="predicted", mode="lines", line={"color": TEAL, "width": 3})
    figure.add_trace(line.update(hovertemplate="k = %{x:,}: %{y:.3f}x predicted<extra></extra>"))
    model = go.Scatter(x=ks, y=prediction.mbsu[row], name="MBSU (modelled from parameters)", mode="lines")
    model.update(line={"color": GREY, "dash": "dot"}, visible="legendonly")
    figure.add_trace(model.update(hovertemplate="k = %{x:,}: MBSU %{y:.3f}, modelled<extra></extra>"))
    points = [one for one in measured if one.gamma == gamma]
    if points:
        dots = go.Scatter(
            x=[one.k for one in points],
            y=[one.speedup.median for one in points],
            error_y={
                "array": [one.speedup.high - one.speedup.median for one in points],
                "arrayminus": [one.speedup.median - one.speedup.low for one in points],
            },
            name="measured",
            mode="markers",
            marker={"color": VIOLET, "size": 11, "symbol": "diamond"},
        )
        figure.add_trace(dots.update(hovertemplate="k = %{x:,}: %{y:.3f}x measured<extra></extra>"))
    figure.add_hline(y=1, line={"color": GREY, "width": 1})
    figure.add_vline(x=k, line={"color": ORANGE, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(type="log", title="k, tokens kept", dtick=1, tickformat=",")
    figure.update_yaxes(title="times the speed of vanilla")
    return _finished(figure, 420)


def acceptance(prediction: Prediction, k: int) -> go.Figure:
    """Acceptance length against k, a line a gamma."""
    figure = go.Figure()
    shown = prediction.gammas[:: max(1, len(prediction.gammas) // 5)]
    for number, gamma in enumerate(shown):
        row = prediction.gammas.index(gamma)
        line = go.Scatter(x=prediction.ks, y=prediction.tau[row], name=f"gamma {gamma}", mode="lines")
        line.update(line_color=LINES[number % len(LINES)], customdata=prediction.retained[row])
        text = f"k = %{{x:,}}, gamma {gamma}: %{{y:.3f}} tokens a pass, %{{customdata:.1%}} of full<extra></extra>"
        figure.add_trace(line.update(hovertemplate=text))
    figure.add_vline(x=k, line={"color": ORANGE, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(type="log", title="k, tokens kept", dtick=1, tickformat=",")
    figure.update_yaxes(title="tokens per target pass")
    return _finished(figure, 420)


def parts(profile: LatencyProfile) -> go.Figure:
    """Milliseconds of the target's pass against its tokens, and of the head against k in the cycle and alone."""
    figure = make_subplots(cols=2, subplot_titles=("target pass, over tokens", "drafter head, over k"))
    passes = profile.part("verification")
    tokens = [draft + 1 for draft in profile.drafts]
    figure.add_trace(_spread_line(tokens, passes, "target pass", TEAL), 1, 1)
    figure.add_trace(_spread_line(profile.ks, profile.part("head"), "head in the cycle", VIOLET), 1, 2)
    if profile.alone:
        sizes = [one.k for one in profile.alone]
        figure.add_trace(_spread_line(sizes, [one.cold for one in profile.alone], "head alone, cold", ORANGE), 1, 2)
        figure.add_trace(_spread_line(sizes, [one.warm for one in profile.alone], "head alone, warm", GREY), 1, 2)
    figure.update_xaxes(type="log", dtick=1, tickformat=",", col=2)
    figure.update_yaxes(title="milliseconds", rangemode="tozero", col=1)
    figure.update_yaxes(type="log", col=2)
    return _finished(figure, 360)


def shape(found: ShapeEstimate) -> go.Figure:
    """Measured head time and estimated speedup over the whole vocabulary, against k."""
    titles = ("head time, measured here", "speedup against the full vocabulary, estimated")
    figure = make_subplots(cols=2, subplot_titles=titles)
    spreads = [one.cold for one in found.timings]
    figure.add_trace(_spread_line(found.ks, spreads, "head, cold", TEAL), 1, 1)
    line = go.Scatter(x=found.ks, y=found.over_untrimmed, name="estimate", mode="lines+markers", line_color=ORANGE)
    figure.add_trace(line.update(hovertemplate="k = %{x:,}: about %{y:.2f}x<extra></extra>"), 1, 2)
    figure.update_xaxes(type="log", title="k", dtick=1, tickformat=",")
    figure.update_yaxes(title="milliseconds a token", rangemode="tozero", col=1)
    return _finished(figure, 340)


def _spread_line(x: Sequence[int], spreads: Sequence, name: str, colour: str) -> go.Scatter:
    line = go.Scatter(x=list(x), y=[one.median * 1e3 for one in spreads], name=name, mode="lines+markers")
    error = {
        "array": [(one.high - one.median) * 1e3 for one in spreads],
        "arrayminus": [(one.median - one.low) * 1e3 for one in spreads],
        "thickness": 1,
        "width": 3,
    }
    return line.update(
        line_color=colour, error_y=error, hovertemplate=f"{name}, %{{x:,}}: %{{y:.3f}} ms<extra></extra>"
    )


def _finished(figure: go.Figure, height: int) -> go.Figure:
    legend = {"orientation": "h", "yanchor": "bottom", "y": 1.08, "xanchor": "left", "x": 0}
    return figure.update_layout(height=height, margin={"l": 8, "r": 16, "t": 56, "b": 8}, legend=legend)
