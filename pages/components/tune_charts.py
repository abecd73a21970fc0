"""Figures of the page Tune."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from pages.components.charts import BAND, GREY, ORANGE, SYMBOLS, TEAL, VIOLET, finished, line_style
from vocabtrim_core.evaluation.measuring import Measured
from vocabtrim_core.evaluation.profile import LatencyProfile
from vocabtrim_core.evaluation.shapes import ShapeEstimate
from vocabtrim_core.evaluation.tuning import Prediction, Recommendation

TICKS = [4**i for i in range(2, 10)]


def heat_map(prediction: Prediction, best: Recommendation) -> go.Figure:
    """Predicted speedup against vanilla over gamma (rows) and k (columns); below 1 it is orange."""
    ks = np.array(prediction.ks)
    notes = [
        [
            f"k = {k:,}, gamma = {gamma}: {prediction.speedup[row, column]:.2f}× "
            f"({prediction.low[row, column]:.2f} to {prediction.high[row, column]:.2f}), "
            f"{prediction.tau[row, column]:.2f} tokens per pass"
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
        # Along the top, so that a narrow screen has room for the ticks.
        colorbar={"title": {"text": "times the speed of vanilla", "side": "top"}, "thickness": 10, "orientation": "h"},
    )
    heat.update(colorbar={"y": 1.02, "yanchor": "bottom", "len": 0.9, "nticks": 6})
    figure = go.Figure(heat)
    _, column = prediction.at(best.k, best.gamma)
    mark = go.Scatter(x=[column], y=[best.gamma], mode="markers", hoverinfo="skip", showlegend=False)
    figure.add_trace(mark.update(marker={"symbol": "circle-open", "size": 16, "color": "#1c1c1c", "line_width": 3}))
    # The columns stand side by side; a round tick lies where its k would be, and not too near the last.
    round_ks = [tick for tick in TICKS if ks[0] <= tick < 0.5 * ks[-1]]
    places = np.interp(np.log(round_ks), np.log(ks), np.arange(len(ks))).tolist()
    shown: dict[float, str] = {}
    for place, tick in zip(places, round_ks, strict=True):
        if all(place - before > 0.12 * len(ks) for before in shown):
            shown[place] = f"{tick:,}"
    shown[len(ks) - 1] = "full"
    figure.update_xaxes(title="k, tokens kept", tickvals=list(shown), ticktext=list(shown.values()), tickangle=0)
    figure.update_yaxes(title="gamma", dtick=1)
    return finished(figure, 170 + 34 * max(4, len(prediction.gammas))).update_layout(margin_t=80)


def curve(prediction: Prediction, gamma: int, k: int, measured: Sequence[Measured]) -> go.Figure:
    """Predicted speedup against k at one gamma with its interval, the measured points, and the modelled MBSU."""
    row = prediction.gammas.index(gamma)
    ks = prediction.ks
    figure = go.Figure()
    band = go.Scatter(x=[*ks, *ks[::-1]], y=[*prediction.high[row], *prediction.low[row][::-1]], mode="lines")
    figure.add_trace(band.update(name="95% interval", fill="toself", fillcolor=BAND, line_width=0, hoverinfo="skip"))
    line = go.Scatter(x=ks, y=prediction.speedup[row], name="predicted", mode="lines", line={"color": TEAL, "width": 3})
    figure.add_trace(line.update(hovertemplate="k = %{x:,}: %{y:.3f}× predicted<extra></extra>"))
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
        figure.add_trace(dots.update(hovertemplate="k = %{x:,}: %{y:.3f}× measured<extra></extra>"))
    figure.add_hline(y=1, line={"color": GREY, "width": 1})
    figure.add_vline(x=k, line={"color": ORANGE, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(type="log", title="k, tokens kept", dtick=1, tickformat=",")
    figure.update_yaxes(title="times the speed of vanilla")
    return finished(figure, 420)


def acceptance(prediction: Prediction, k: int) -> go.Figure:
    """Acceptance length against k, a line a gamma."""
    figure = go.Figure()
    shown = prediction.gammas[:: max(1, len(prediction.gammas) // 5)]
    for number, gamma in enumerate(shown):
        row = prediction.gammas.index(gamma)
        line = go.Scatter(x=prediction.ks, y=prediction.tau[row], name=f"gamma {gamma}", mode="lines")
        line.update(line=line_style(number), customdata=prediction.retained[row])
        text = f"k = %{{x:,}}, gamma {gamma}: %{{y:.3f}} tokens per pass, %{{customdata:.1%}} of full<extra></extra>"
        figure.add_trace(line.update(hovertemplate=text))
    figure.add_vline(x=k, line={"color": ORANGE, "width": 1.5, "dash": "dot"})
    figure.update_xaxes(type="log", title="k, tokens kept", dtick=1, tickformat=",")
    figure.update_yaxes(title="tokens per target pass")
    return finished(figure, 420)


def target_pass(profile: LatencyProfile) -> go.Figure:
    """Milliseconds of the target's pass against its tokens."""
    tokens = [draft + 1 for draft in profile.drafts]
    figure = go.Figure(_spread_line(tokens, profile.part("verification"), "target pass", TEAL, 0))
    figure.update_xaxes(title="tokens of a target pass", dtick=1)
    figure.update_yaxes(title="milliseconds", rangemode="tozero")
    return finished(figure, 340).update_layout(showlegend=False)


def head_by_k(profile: LatencyProfile) -> go.Figure:
    """Milliseconds of the drafter's head against k, in the cycle and alone."""
    figure = go.Figure(_spread_line(profile.ks, profile.part("head"), "in the cycle", VIOLET, 1))
    sizes = [one.k for one in profile.alone]
    if sizes:
        figure.add_trace(_spread_line(sizes, [one.cold for one in profile.alone], "alone, cold", ORANGE, 2))
        figure.add_trace(_spread_line(sizes, [one.warm for one in profile.alone], "alone, warm", GREY, 3))
    figure.update_xaxes(type="log", title="k, rows of the head", dtick=1, tickformat=",")
    figure.update_yaxes(type="log", title="milliseconds", dtick="D2")
    return finished(figure, 340)


def shape_head(found: ShapeEstimate) -> go.Figure:
    """Measured head time against k."""
    figure = go.Figure(_spread_line(found.ks, [one.cold for one in found.timings], "head, cold", TEAL, 0))
    figure.update_xaxes(type="log", title="k, rows of the head", dtick=1, tickformat=",")
    figure.update_yaxes(title="milliseconds per token", rangemode="tozero")
    return finished(figure, 320).update_layout(showlegend=False)


def shape_speed(found: ShapeEstimate) -> go.Figure:
    """Estimated speedup over the whole vocabulary against k."""
    line = go.Scatter(x=found.ks, y=found.over_untrimmed, name="estimate", mode="lines+markers", line_color=ORANGE)
    figure = go.Figure(line.update(hovertemplate="k = %{x:,}: about %{y:.2f}×<extra></extra>"))
    figure.update_xaxes(type="log", title="k, tokens kept", dtick=1, tickformat=",")
    figure.update_yaxes(title="times the full vocabulary")
    return finished(figure, 320)


def _spread_line(x: Sequence[int], spreads: Sequence, name: str, colour: str, number: int) -> go.Scatter:
    line = go.Scatter(x=list(x), y=[one.median * 1e3 for one in spreads], name=name, mode="lines+markers")
    error = {
        "array": [(one.high - one.median) * 1e3 for one in spreads],
        "arrayminus": [(one.median - one.low) * 1e3 for one in spreads],
        "thickness": 1,
        "width": 3,
    }
    line.update(line={**line_style(number), "color": colour}, marker={"symbol": SYMBOLS[number], "size": 7})
    return line.update(error_y=error, hovertemplate=f"{name}, %{{x:,}}: %{{y:.3f}} ms<extra></extra>")
