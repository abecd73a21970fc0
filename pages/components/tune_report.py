"""The page Tune as files: the curve as CSV, and everything as one HTML file that needs nothing else."""

from __future__ import annotations

import hashlib
import io
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from pages.components import tables
from pages.components.settings import SHIPPED, Settings
from pages.components.text import shown
from vocabtrim_core.evaluation.trace import TunePrompt
from vocabtrim_core.evaluation.tuning import Prediction

TITLE = "VocabTrim: what to ship"
_STYLE = Path(__file__).with_name("report.css")


@dataclass(frozen=True)
class Section:
    """A part of the report: a title, a sentence, and figures by their titles or a table."""

    title: str
    text: str
    figures: Mapping[str, go.Figure] | None = None
    table: pd.DataFrame | None = None


def curve_frame(prediction: Prediction) -> pd.DataFrame:
    """One row per (gamma, k)."""
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


def command(settings: Settings, prompts: Sequence[TunePrompt], gammas: Sequence[int], ks: Sequence[int]) -> str:
    """The shell command that tunes and measures the same; a word in capitals stands for a file that the reader has."""
    files = {prompt.where.rpartition(":")[0] for prompt in prompts if prompt.where}
    # Those that come with the project have the path of their file here.
    file = "".join(name for name in files if not Path(name).is_absolute())
    limit = max(Counter(prompt.task for prompt in prompts).values())
    plain = settings.corpus == SHIPPED and not (settings.prior or settings.order or settings.pinned or settings.banned)
    options = {
        "target": settings.target,
        "drafter": settings.drafter,
        "dtype": settings.dtype,
        "prompts": file or "builtin",
        "limit": limit,
        "counts": "" if plain else "COUNTS.npz",
        "gammas": ",".join(map(str, gammas)),
        "measure": ",".join(map(str, ks)),
        "max-new-tokens": settings.max_new_tokens,
        "repeats": settings.repeats,
        "stop": settings.stop_string,
        "tree": settings.tree,
    }
    if settings.temperature:
        options |= {
            "temperature": settings.temperature,
            "top-k": settings.top_k,
            "top-p": settings.top_p,
            "min-p": settings.min_p,
            "seed": settings.seed,
        }
    words = [f"--{name}={value}" for name, value in options.items() if value != ""]
    return shlex.join(["python", "-m", "vocabtrim_core", "tune", *words])


def report(lead: str, also: str, facts: Mapping[str, str], sections: Sequence[Section], link: str, again: str) -> bytes:
    """The answer `lead` first, then what else is to say and the facts, each section, and how to repeat it: the `link`
    to the page, if there is one, and the command `again`. All text is shown as it is. In a browser it needs no network,
    and it follows the reader's light or dark setting."""
    parts = [f'<h1>{TITLE}</h1><p class="lead">{shown(lead)}</p>', f"<p>{shown(also)}</p>" if also else ""]
    pairs = "".join(f"<div><dt>{shown(name)}</dt><dd>{shown(value)}</dd></div>" for name, value in facts.items())
    parts.append(f'<dl class="facts">{pairs}</dl>')
    parts += [_section(section) for section in sections]
    parts.append(f"<section><h2>To repeat it</h2>{_link(link)}<pre>{shown(again)}</pre></section>")
    body = "\n".join(parts)
    style = _STYLE.read_text() + tables.STYLE.read_text()
    # Streamlit tells long files apart by their length, beginning, middle and end.
    digest = hashlib.sha256(body.encode()).hexdigest()
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="digest" content="{digest}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{TITLE}</title>'
        f"<style>{style}</style><script>{get_plotlyjs()}</script></head><body><main>{body}</main></body></html>"
    )
    return page.encode()


def _section(section: Section) -> str:
    parts = [f"<h2>{shown(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{shown(section.text)}</p>")
    if section.figures:
        drawn = "".join(_drawn(title, figure) for title, figure in section.figures.items())
        several = ' class="figures"' if len(section.figures) > 1 else ""
        parts.append(f"<div{several}>{drawn}</div>")
    if section.table is not None:
        parts.append(tables.table(section.table))
    return f"<section>{''.join(parts)}</section>"


def _drawn(title: str, figure: go.Figure) -> str:
    """On no ground of its own and in the text's colour, so that the style sheet decides between light and dark."""
    clear = "rgba(0,0,0,0)"
    drawn = go.Figure(figure).update_layout(
        template="plotly_white", paper_bgcolor=clear, plot_bgcolor=clear, font={"family": "system-ui, sans-serif"}
    )
    config = {"responsive": True, "displayModeBar": False}
    body = drawn.to_html(full_html=False, include_plotlyjs=False, config=config, default_width="100%")
    return f"<div>{f'<h3>{shown(title)}</h3>' if title else ''}{body}</div>"


def _link(link: str) -> str:
    """A link to the page, which works where the app runs."""
    if not link.startswith(("http://", "https://")):
        return ""
    return f'<p><a href="{shown(link)}">The page with these settings</a>, where the app runs; or as a command:</p>'
