"""The app in a real browser (Debian's Chromium, driven by Playwright) against a real server."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Literal
from urllib.parse import urlencode

import pytest
from chart_faults import FAULTS, STILL
from playwright.sync_api import Browser, Page, expect
from tiny_models import save_first_layer, save_tiny_llama
from tiny_tokenizer import make_tiny_tokenizer

from vocabtrim_core.embedded import embedded_target_folder

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running app whose embedded target is in place."""
    embedded_target_folder()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"address": "127.0.0.1", "port": port, "headless": "true", "fileWatcherType": "none"}
    command = [sys.executable, "-m", "streamlit", "run", "app.py"]
    command += [f"--server.{name}={value}" for name, value in options.items()]
    log = tmp_path_factory.mktemp("server") / "log.txt"
    with log.open("wb") as sink:
        process = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stdout=sink, stderr=sink)
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/_stcore/health", process, log)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        assert process.poll() is None, f"the server ended:\n{log.read_text()}"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise AssertionError(f"the server did not answer:\n{log.read_text()}")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    yield context.new_page()
    context.close()


def settled(page: Page) -> None:
    """Wait until the page has run to its end; no traceback may show."""
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]")
    page.wait_for_selector("h1")
    expect(page.get_by_test_id("stException")).to_have_text([])


def go(page: Page, label: str, title: str) -> None:
    """Follow a link of the sidebar."""
    page.get_by_test_id("stSidebar").get_by_role("link", name=label, exact=True).click()
    expect(page.locator("h1")).to_have_text(title)
    settled(page)


def set_k(page: Page, k: int) -> None:
    field = page.get_by_label("k, exactly")
    field.fill(str(k))
    field.press("Enter")
    expect(page).to_have_url(re.compile(rf"[?&]k={k}\b"))
    settled(page)


def answer(page: Page) -> str:
    return page.locator(".vt-answer").inner_text()


def test_main_path(server: str, page: Page, tmp_path: Path) -> None:
    """Catches a break anywhere between a text of one's own and a stopped generation."""
    page.goto(server)
    settled(page)
    assert "It works here" in answer(page)

    go(page, "Calibrate", "What does my text look like in tokens?")
    text = tmp_path / "harbour.txt"
    text.write_text("The harbour master wrote down every ship that passed the lighthouse. <b>Bold</b>\n\n" * 400)
    page.get_by_test_id("stFileUploaderDropzoneInput").first.set_input_files(text)
    page.get_by_role("button", name="Count", exact=True).click()
    expect(page.locator(".vt-answer")).to_contain_text("harbour.txt")
    settled(page)
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    expect(page.locator(".vt-card", has_text="harbour.txt").first).to_be_visible()
    assert page.locator("b", has_text=re.compile("^Bold$")).count() == 0

    go(page, "Coverage", "How many tokens do I need?")
    assert "harbour.txt" in answer(page)
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    before = answer(page)
    set_k(page, 25)
    expect(page.locator(".vt-answer")).not_to_have_text(before)
    assert "k\u00a0=\u00a025 covers" in answer(page)

    go(page, "Trim", "What does the smaller head save here?")
    expect(page.locator(".vt-answer")).to_contain_text("k\u00a0=\u00a025")
    set_k(page, 2048)
    expect(page.locator(".vt-answer")).to_contain_text("k\u00a0=\u00a02,048")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()


def test_generate_then_stop_in_the_middle(server: str, page: Page) -> None:
    """Catches a run without figures, a Stop that does not stop, and tokens that are lost when it does."""
    page.goto(f"{server}/Generate?max_new_tokens=8&repeats=1&k=4096")
    settled(page)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".vt-answer")).to_contain_text(re.compile("faster|SLOWER"))
    settled(page)
    expect(page.locator(".vt-table").first).to_be_visible()
    expect(page.locator(".vt-accepted, .vt-correction, .vt-outside").first).to_be_visible()

    page.goto(f"{server}/Generate?max_new_tokens=400&repeats=9&k=4096")
    settled(page)
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_text("so far").first).to_be_visible()
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".vt-answer")).to_contain_text("Stopped")
    settled(page)
    expect(page.get_by_text("stopped here").first).to_be_visible()
    kept = page.locator(".vt-text .vt-vanilla").count()
    assert kept > 1
    # The machine is free again: another run starts.
    page.get_by_role("button", name="Run", exact=True).click()
    expect(page.locator(".vt-answer")).to_contain_text("Running")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator(".vt-answer")).to_contain_text("Stopped")
    settled(page)


def test_mix_see_the_matrix_and_pin(server: str, page: Page) -> None:
    """Catches a break between two mixed corpora, what their rankings miss, and a missing token that is pinned."""
    page.goto(f"{server}/Calibrate?corpus=prose")
    settled(page)
    page.locator("[data-testid=stMain]").get_by_role("button", name="Mix in").nth(2).click()
    expect(page).to_have_url(re.compile(r"corpus=prose(%3A|:)50(%2C|,)code(%3A|:)50"))
    settled(page)
    go(page, "Coverage", "How many tokens do I need?")
    expect(page.locator(".vt-answer")).to_contain_text("50% Sample prose + 50% Sample code")
    expect(page.locator(".vt-heat")).to_contain_text("Sample Chinese")
    missing = (
        page.get_by_test_id("stButtonGroup")
        .get_by_role("radio")
        .or_(page.get_by_test_id("stMain").locator("[data-testid=stBaseButton-pills]"))
    )
    missing.first.click()
    expect(page).to_have_url(re.compile(r"pinned=\d+"))
    settled(page)
    expect(page.get_by_test_id("stMain").get_by_text("Pinned:")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile(r"\(\d+\)")).first).to_be_visible()


def test_link_and_navigation_keep_the_settings(server: str, page: Page) -> None:
    """Catches settings that get lost in a shared link, in the sidebar's links, or by going back and forth."""
    page.goto(f"{server}/Coverage?k=1234&gamma=5&dtype=float32&temperature=0.5")
    settled(page)
    for label, title in (
        ("Calibrate", "What does my text look like in tokens?"),
        ("Start", re.compile("smaller vocabulary")),
        ("Coverage", "How many tokens do I need?"),
    ):
        go(page, label, title)  # type: ignore[arg-type]
        expect(page.get_by_label("k, exactly")).to_have_value("1234")
        assert {"k=1234", "gamma=5", "dtype=float32", "temperature=0.5"} <= set(page.url.split("?")[1].split("&"))
    assert "k\u00a0=\u00a01,234 covers" in answer(page)
    shared = page.url
    other = page.context.browser.new_context().new_page()  # type: ignore[union-attr]
    other.goto(shared)
    expect(other.get_by_label("k, exactly")).to_have_value("1234")
    other.context.close()


def test_own_corpora_survive_a_reload_and_stay_with_their_browser(server: str, page: Page, tmp_path: Path) -> None:
    """Catches corpora that are lost with a reload, a link that opens them elsewhere, and one that shows other figures
    there without a word."""
    page.goto(f"{server}/Calibrate")
    settled(page)
    text = tmp_path / "lantern.txt"
    text.write_text("The lantern swung over the wet deck while the mate read the log aloud.\n\n" * 300)
    page.get_by_test_id("stFileUploaderDropzoneInput").first.set_input_files(text)
    page.get_by_role("button", name="Count", exact=True).click()
    expect(page.locator(".vt-answer")).to_contain_text("lantern.txt")
    settled(page)
    link = page.url
    (cookie,) = [one for one in page.context.cookies() if one["name"] == "vocabtrim_visitor"]
    assert "corpus=" in link and cookie["value"] not in link and cookie["sameSite"] == "Strict"
    page.reload()
    expect(page.locator(".vt-answer")).to_contain_text("lantern.txt")
    settled(page)
    assert page.url == link
    other = page.context.browser.new_context().new_page()  # type: ignore[union-attr]
    other.goto(link)
    expect(other.get_by_text("This link's corpus is not here")).to_be_visible()
    expect(other.locator(".vt-answer")).not_to_contain_text("lantern.txt")
    assert other.url == link
    other.context.close()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.locator(".vt-answer")).not_to_contain_text("lantern.txt")
    page.reload()
    settled(page)
    expect(page.locator(".vt-card", has_text="lantern.txt")).to_have_count(0)


def test_first_request_after_a_start_may_be_any_page(server: str, page: Page) -> None:
    """Catches a deep link with nonsense in it that shows a traceback, or an empty page."""
    for path in ("", "Calibrate", "Coverage", "Trim", "Generate"):
        page.goto(f"{server}/{path}?k=-3&gamma=x&corpus=none&dtype=int4")
        settled(page)
        expect(page.locator(".vt-answer")).to_be_visible()


def test_every_download_in_any_order_twice_after_a_rerun_and_beside_another_tab(
    server: str, page: Page, little: str
) -> None:
    """Bug: a button that saves nothing after another one was clicked, after a rerun or while the page runs, since the
    server has forgotten its file; a click that reruns the page."""
    page.goto(f"{server}/Tune?{little}")
    settled(page)
    tune_a_little(page)
    other = page.context.new_page()
    other.goto(f"{server}/Calibrate?{little}")
    settled(other)

    def saved(where: Page, label: str, number: int = 0) -> bytes:
        with where.expect_download(timeout=20_000) as waiting:
            where.get_by_test_id("stDownloadButton").filter(has_text=label).nth(number).click()
        return waiting.value.path().read_bytes()

    curve, report = saved(page, "Curve as CSV"), saved(page, "Report for the team")
    assert curve.startswith(b"gamma,k,") and b"what to ship" in report
    for label in ("Report for the team", "Curve as CSV", "Curve as CSV", "Report for the team"):
        assert saved(page, label) == (curve if "CSV" in label else report)
    assert saved(other, "Counts", 1) == saved(other, "Counts", 1)
    saved(other, "Counts", 0)
    # At once, while the rerun that another k starts is under way.
    field = page.get_by_label("k, exactly")
    field.fill("120")
    field.press("Enter")
    assert saved(page, "Report for the team") and saved(page, "Curve as CSV")
    settled(page)
    later = saved(page, "Report for the team")
    assert b"k=120" in later and later != report
    assert saved(other, "Counts", 1)


@pytest.mark.parametrize("path", sorted((ROOT / "pages").rglob("*.py")), ids=lambda path: path.name)
def test_downloads_are_made_in_one_place(path: Path) -> None:
    """Bug: a new button made past the helper, with the faults that the test above looks for."""
    assert path.name == "downloads.py" or "download_button" not in path.read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1440, 1000), (1000, 900), (390, 840)], ids=lambda size: str(size[0]))
def test_no_text_of_a_chart_or_table_is_cut(
    server: str, browser: Browser, little: str, size: tuple[int, int], scheme: Literal["light", "dark"]
) -> None:
    """Bug: ticks, titles and columns that a narrow window or a long name cuts off or lays over each other."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    try:
        for path in ("", "Calibrate", "Coverage", "Trim", "Generate", "Tune"):
            page.goto(f"{server}/{path}?{little}")
            settled(page)
            if path == "Generate":
                page.get_by_role("button", name="Run", exact=True).click()
                expect(page.locator(".vt-answer")).to_contain_text(re.compile("faster|SLOWER"), timeout=PATIENCE_MS)
            if path == "Tune":
                tune_a_little(page)
            settled(page)
            if path:
                page.locator(".js-plotly-plot .xtick text").first.wait_for(state="attached")
            page.wait_for_function(STILL, polling=400)
            assert page.evaluate(FAULTS) == [], path
    finally:
        context.close()


PROMPTS = [{"task": "qa", "prompt": "The cat"}, {"task": "code", "prompt": "A dog sat"}, {"prompt": "On the mat"}]


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A link's parameters that choose a tiny random pair and short texts."""
    root = tmp_path_factory.mktemp("little")
    tokenizer = make_tiny_tokenizer(root / "target")
    make_tiny_tokenizer(root / "drafter")
    target = save_tiny_llama(root / "target", vocab_size=tokenizer.vocab_size + 4)
    save_first_layer(target, root / "drafter", vocab_size=tokenizer.vocab_size + 12)
    asked = {"target": root / "target", "drafter": root / "drafter", "corpus": "chat", "k": 100, "dtype": "float32"}
    return urlencode({**asked, "gamma": 2, "max_new_tokens": 12, "repeats": 1})


def tune_a_little(page: Page) -> None:
    """Tune on three short prompts."""
    lines = "".join(json.dumps(line) + "\n" for line in PROMPTS).encode()
    file = {"name": "own.jsonl", "mimeType": "application/jsonl", "buffer": lines}
    page.get_by_test_id("stMain").get_by_test_id("stFileUploaderDropzoneInput").set_input_files(file)  # type: ignore[arg-type]
    expect(page.get_by_text("3 prompts of")).to_be_visible()
    settled(page)
    page.get_by_role("button", name="Tune", exact=True).click()
    expect(page.get_by_role("button", name="Report for the team (HTML)")).to_be_visible()
    settled(page)
