"""The page Tune as files: the curve as CSV, and everything as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from vocabtrim_core.evaluation.tuning import Prediction

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#1c2326}"
    "table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.2rem .7rem;border-bottom:1px solid #d5dadc;"
    "text-align:right}td:first-child,th:first-child{text-align:left}.lead{font-size:1.2rem}small{color:#5d696e}"
)


def curve_frame(prediction: Prediction) -> pd.DataFrame:
    """One row a (gamma, k)."""
    rows = [
        {
            "gamma": gamma,
            "k": k,
            "acceptance_length": prediction.tau[row, column],
            "retained": prediction.retained[row, column],
            "predicted_speedup": prediction.speedup[row, column],
            "low": prediction.low[row, column],
            "high": prediction.high[row, column],
            "out_of_vocabulary_share": prediction.out_of_vocabulary_share[row, column],
            "modelled_mbsu": prediction.mbsu[row, column],
        }
        for row, gamma in enumerate(prediction.gammas)
        for column, k in enumerate(prediction.ks)
    ]
    return pd.DataFrame(rows)


def csv(frame: pd.DataFrame) -> bytes:
    buffer = io.StringIO()
    frame.to_csv(buffer, index=False, float_format="%.6g")
    return buffer.getvalue().encode()


def report(
    lead: str, facts: dict[str, str], sections: Sequence[tuple[str, str, go.Figure | pd.DataFrame | None]]
) -> bytes:
    """`lead` first, then each section: a title, a sentence, and a figure or table. All text is shown as it is."""
    parts = [f'<h1>VocabTrim: what to ship</h1><p class="lead">{html.escape(lead)}</p>']
    parts.append(
        "<p><small>" + " · ".join(html.escape(f"{name}: {value}") for name, value in facts.items()) + "</small></p>"
    )
    with_library = True
    for title, text, content in sections:
        parts.append(f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>")
        if isinstance(content, go.Figure):
            parts.append(content.to_html(full_html=False, include_plotlyjs=with_library))
            with_library = False
        elif content is not None:
            parts.append(content.to_html(index=False, border=0, escape=True))
    body = "\n".join(parts)
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>VocabTrim: what to ship</title>'
        f"<style>{_STYLE}</style></head><body>{body}</body></html>"
    )
    return page.encode()
