"""The report for the team, opened in a real browser, and what its parts say."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from chart_faults import FAULTS
from playwright.sync_api import Browser, Page

from pages.components import tune_charts
from pages.components.settings import Settings
from pages.components.tune_report import Section, command, report
from vocabtrim_core import cli
from vocabtrim_core.evaluation.latency import HeadTiming
from vocabtrim_core.evaluation.machine import Machine
from vocabtrim_core.evaluation.measuring import Measured
from vocabtrim_core.evaluation.profile import LatencyProfile
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.evaluation.trace import TunePrompt
from vocabtrim_core.evaluation.tuning import Prediction, recommend

HOSTILE = "<img src=x onerror=\"document.title='hit'\"></script>&amp;"
SIZES = ((1440, 900), (1000, 800), (390, 840))


def prediction(gammas: int = 6) -> Prediction:
    ks = tuple(np.unique(np.geomspace(17, 49_152, 67).round().astype(int)).tolist())
    shape = (gammas, len(ks))
    speed = 1.2 - 0.3 * np.abs(np.linspace(-0.6, 1, shape[1])) - 0.06 * np.arange(gammas)[:, None]
    tau = 1.2 + np.linspace(0, 0.6, shape[1]) + 0.1 * np.arange(gammas)[:, None]
    noise = np.random.default_rng(0).normal(1, 0.01, (200, *shape))
    shares = np.zeros(shape)
    names = tuple(range(1, gammas + 1))
    return Prediction(names, ks, tau, speed, speed - 0.1, speed + 0.1, speed, shares, speed * noise, 14, 1_500)


def profile() -> LatencyProfile:
    drafts, ks, rounds = (0, 1, 3, 6), (512, 1_254, 49_152), 3
    rng = np.random.default_rng(1)

    def parts(count: int) -> np.ndarray:
        return 0.02 + np.arange(count) * 0.006 + rng.random((1, rounds, count)) * 0.002

    alone = tuple(HeadTiming(k, Spread(1e-6 * k, 9e-7 * k, 2e-6 * k), Spread(2e-6 * k, 1e-6 * k, 3e-6 * k)) for k in ks)
    machine = Machine("AMD EPYC <b>7R13</b> 48-Core Processor", 2, "2.13.0+cpu")
    several = parts(4), parts(4) / 20, parts(4) / 5, parts(3) / 10
    return LatencyProfile((64,), drafts, ks, *several, np.full((1, rounds), 0.004), alone, "float32", machine, 0.0)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found, timed = prediction(), profile()
    best = recommend(found)
    runs = [Measured(best.k, best.gamma, 1.5, Spread(40, 38, 42), Spread(1.1, 1.05, 1.2))]
    wide = pd.DataFrame(
        {
            "k": [f"{k:,}" for k in found.ks[::9]],
            "measured": ["1.13× (1.09 to 1.18)"] * len(found.ks[::9]),
            "predicted": ["1.04× (0.93 to 1.21)"] * len(found.ks[::9]),
            "prediction off by": ["−8.5%"] * len(found.ks[::9]),
            "tokens per pass": ["1.523"] * len(found.ks[::9]),
            "where": [HOSTILE + " word" * 20] * len(found.ks[::9]),
        }
    )
    charts = {
        "Speed": tune_charts.curve(found, best.gamma, best.k, runs),
        "Acceptance": tune_charts.acceptance(found, best.k),
        "Target pass": tune_charts.target_pass(timed),
        "Head": tune_charts.head_by_k(timed),
    }
    sections = [
        Section("Map " + HOSTILE, HOSTILE, {"": tune_charts.heat_map(found, best)}),
        Section("Charts", "", charts),
        Section("Table", "", table=wide),
    ]
    facts = {"models": HOSTILE, "date": "2026-12-01 03:00"}
    page = report(f"Ship {HOSTILE}", HOSTILE, facts, sections, "http://localhost:8501/Tune?k=4096", f"tune {HOSTILE}")
    path = tmp_path_factory.mktemp("report") / "tune.html"
    path.write_bytes(page)
    return path


def opened(browser: Browser, file: Path, size: tuple[int, int], scheme: str, asked: list[str]) -> Page:
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: asked.append("dialog"))
    page.goto(file.as_uri())
    drawn = "plot => plot.querySelector('.xtick text') && plot.querySelector('.ytitle')"
    page.wait_for_function(f"() => [...document.querySelectorAll('.plotly-graph-div')].every({drawn})")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_of_the_report_is_cut_or_overlaps(
    browser: Browser, file: Path, size: tuple[int, int], scheme: str
) -> None:
    """Bug: tick labels outside the drawing, titles on ticks, a table that makes the page scroll; the network used."""
    asked: list[str] = []
    page = opened(browser, file, size, scheme, asked)
    try:
        assert page.evaluate(FAULTS) == []
        assert [url for url in asked if not url.startswith("file:")] == []
        assert page.title() == "VocabTrim: what to ship"
        ground, ink = page.evaluate(
            "() => [getComputedStyle(document.body).backgroundColor,"
            " getComputedStyle(document.querySelector('.xtick text')).fill]"
        )
        light = sum(map(int, ground[4:-1].split(","))) > 380
        assert light == (scheme == "light")
        assert light != (sum(map(int, ink[4:-1].split(","))) > 380)
        sides = page.evaluate(
            "() => ['k', 'measured', 'where'].map(name => [...document.querySelectorAll('thead th')]"
            ".find(node => node.textContent == name)).map(node => getComputedStyle(node).textAlign)"
        )
        assert sides == ["right", "right", "left"]
    finally:
        page.context.close()


def test_the_faults_would_be_seen(browser: Browser, file: Path) -> None:
    """Bug: the check above finds nothing because it looks at nothing."""
    page = opened(browser, file, SIZES[0], "light", [])
    try:
        page.evaluate(
            "() => { document.querySelector('.xtick text').style.transform = 'translateX(-300px)';"
            " document.querySelector('main').style.width = '2000px'; }"
        )
        found = page.evaluate(FAULTS)
        assert any(one.startswith("cut") for one in found) and "the page scrolls sideways" in found
    finally:
        page.context.close()


def test_long_reports_differ_at_their_beginning() -> None:
    """Bug: two reports of one length are taken for the same file, since only parts of a long one are looked at."""
    pages = [report("Ship", "", {"k": text}, [], "", "x") for text in ("4,096", "8,192")]
    assert len(pages[0]) == len(pages[1]) and pages[0][:1000] != pages[1][:1000]


def test_the_command_is_one_that_the_command_line_reads() -> None:
    """Bug: an option that is not there, a path with spaces that falls apart, a setting that is left out."""
    settings = Settings(
        target="/data/my model", stop_string="--x 'y'", temperature=0.5, corpus="chat", seed=3, max_new_tokens=40
    )
    prompts = [TunePrompt((1,), "qa", "own.jsonl:1"), TunePrompt((1,), "qa", "own.jsonl:2")]
    text = command(settings, prompts, (1, 2, 3), (4096, 49_152))
    words = shlex.split(text)
    read = cli._parser().parse_args(words[3:])
    assert (read.target, read.stop, read.temperature, read.seed) == ("/data/my model", ["--x 'y'"], 0.5, 3)
    assert (str(read.prompts), read.limit, str(read.counts)) == ("own.jsonl", 2, "COUNTS.npz")
    assert (read.gammas, read.measure, read.max_new_tokens) == ([1, 2, 3], [4096, 49_152], 40)
    shipped = [replace(one, where="/somewhere/data/tasks/qa.jsonl:1") for one in prompts]
    text = command(Settings(), shipped, (1,), (4096,))
    assert "--prompts=builtin" in text and "/somewhere" not in text and "--counts" not in text
