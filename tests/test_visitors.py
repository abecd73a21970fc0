"""Corpora of a browser: they come back after a reload, for it alone, and links say when theirs are not there."""

# ruff: noqa: F401, F811 (a fixture of another module)

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from pages.components import visitor
from tests.test_pages import assert_sound, cards, open_page, tiny, told, upload

TEXT = b"the harbour master wrote down every ship that passed " * 30


class Browser:
    """A browser's cookie: opening a page in it sends the key that the server had it remember."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.key = ""
        self._patch = patch

    def open(self, page: str, **query: str) -> AppTest:
        self._patch.setattr(visitor, "given_key", lambda: self.key)
        app = open_page(page, **query)
        self.key = app.session_state["_visitor"]
        return app


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path))


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    return Browser(monkeypatch)


def warnings(app: AppTest) -> list[str]:
    return [one.value for one in app.warning if "not here" in one.value]


def counted(browser: Browser, tiny: dict[str, str]) -> AppTest:
    app = browser.open("pages/1_Calibrate.py", **tiny)
    upload(app, ("harbour.txt", TEXT))
    assert "harbour.txt" in told(app)
    return app


def test_a_reload_brings_everything_back(browser: Browser, tiny: dict[str, str]) -> None:
    """Bug: after a reload the corpora are gone, the address has lost them, and other figures are shown."""
    before = counted(browser, tiny)
    assert any("kept on this server for this browser only" in one.value for one in before.caption)
    after = browser.open("pages/2_Coverage.py", **dict(before.query_params))
    assert_sound(after)
    assert "harbour.txt" in told(after) and not warnings(after)
    assert after.query_params["corpus"] == before.query_params["corpus"]
    again = browser.open("pages/1_Calibrate.py", **tiny)
    assert cards(again) == cards(before)
    upload(again, ("same.txt", TEXT))
    assert cards(again) == cards(before)  # known by its content still


def test_a_list_comes_back(browser: Browser, tiny: dict[str, str]) -> None:
    """Bug: only corpora do."""
    app = browser.open("pages/1_Calibrate.py", **tiny)
    app.file_uploader(key="saved_counts").set_value(("kept.json", b"[50, 7, 90]", "")).run()
    app.button(key="load").click().run()
    order = app.query_params["order"]
    again = browser.open("pages/1_Calibrate.py", **dict(app.query_params))
    assert_sound(again)
    assert again.query_params["order"] == order and again.selectbox(key="order").value == order
    assert not warnings(again)


def test_nobody_else_gets_them(browser: Browser, tiny: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a link, or no cookie at all, opens another person's corpora, or shows other figures without a word."""
    link = dict(counted(browser, tiny).query_params)
    assert browser.key not in str(link)
    other = Browser(monkeypatch)
    for page in ("pages/1_Calibrate.py", "pages/2_Coverage.py"):
        app = other.open(page, **link)
        assert_sound(app)
        assert "harbour.txt" not in told(app) and not app.session_state["_own_corpora"]
        (said,) = warnings(app)
        assert "load it on Calibrate" in said
        assert app.query_params["corpus"] == link["corpus"]  # The link stays what it is.
    assert other.key != browser.key and visitor._KEY.fullmatch(other.key)


def test_a_counts_file_carries_a_corpus_to_a_colleague(
    browser: Browser,
    tiny: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: the colleague loads the counts, and the link, a mixture, still does not find them."""
    first = counted(browser, tiny)
    (key,) = first.session_state["_own_corpora"]
    content = first.session_state["_own_corpora"][key].counts.to_bytes()
    link = dict(first.query_params) | {"corpus": f"{key}:60,chat:40"}
    other = Browser(monkeypatch).open("pages/1_Calibrate.py", **link)
    assert warnings(other) and "Sample chats" in told(other)
    other.file_uploader(key="saved_counts").set_value(("harbour.npz", content, "")).run()
    other.button(key="load").click().run()
    assert_sound(other)
    assert not warnings(other) and other.query_params["corpus"] == f"{key}:60,chat:40"
    assert other.multiselect(key="mix").value == [key, "chat"]


def test_another_choice_ends_the_waiting(browser: Browser, tiny: dict[str, str]) -> None:
    """Bug: the warning stays, or the address keeps the link's corpus, after one has chosen another."""
    app = browser.open("pages/2_Coverage.py", **(tiny | {"corpus": "0123456789abcdef0123", "prior": "abcd"}))
    assert warnings(app)
    app.multiselect(key="mix").set_value(["prose"]).run()
    app.selectbox(key="prior").set_value("chat").run()
    assert_sound(app)
    assert not warnings(app) and app.query_params["corpus"] == "prose" and app.query_params["prior"] == "chat"


def test_a_removed_corpus_is_gone_for_good(browser: Browser, tiny: dict[str, str]) -> None:
    """Bug: it comes back with a reload, or its removal is taken for a link from elsewhere."""
    app = counted(browser, tiny)
    (key,) = app.session_state["_own_corpora"]
    app.button(key=f"remove-{key}").click().run()
    assert_sound(app)
    assert not warnings(app) and key not in app.query_params.get("corpus", "")
    assert not browser.open("pages/1_Calibrate.py", **tiny).session_state["_own_corpora"]


def test_damage_is_left_out(browser: Browser, tiny: dict[str, str], tmp_path: Path) -> None:
    """Bug: a file of another version, or a damaged one, is a traceback on every page."""
    counted(browser, tiny)
    (path,) = (tmp_path / "visitors").glob("*/*.npz")
    path.write_bytes(path.read_bytes()[:-100])
    app = browser.open("pages/1_Calibrate.py", **tiny)
    assert_sound(app)
    assert not app.session_state["_own_corpora"] and not path.exists()


def test_what_cannot_be_kept_is_said(
    browser: Browser,
    tiny: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Bug: a full disk or a file in the way is a traceback, or a promise that is not kept."""
    (tmp_path / "visitors").write_bytes(b"in the way")
    app = counted(browser, tiny)
    assert_sound(app)
    assert any("a reload of the page will lose it" in toast.value for toast in app.toast)
    (key,) = app.session_state["_own_corpora"]
    app.button(key=f"remove-{key}").click().run()
    assert_sound(app)
