"""The page Tune, headless, on a tiny pair."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from html_tables import table_with
from streamlit.testing.v1 import AppTest
from tiny_models import save_first_layer, save_tiny_llama
from tiny_tokenizer import make_tiny_tokenizer

from pages.components.tuning import TuneSession
from tests.test_pages import assert_sound, open_page, told
from vocabtrim_core.evaluation import trace as tracing

PAGE = "pages/5_Tune.py"
PROMPTS = [
    {"task": "qa", "prompt": "The cat"},
    {"task": "code", "prompt": "<b>A dog</b> sat"},
    {"prompt": "On the mat"},
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("tune_page")
    tokenizer = make_tiny_tokenizer(root / "target")
    make_tiny_tokenizer(root / "drafter")
    target = save_tiny_llama(root / "target", vocab_size=tokenizer.vocab_size + 4)
    save_first_layer(target, root / "drafter", vocab_size=tokenizer.vocab_size + 12)
    return {
        "target": str(root / "target"),
        "drafter": str(root / "drafter"),
        "dtype": "float32",
        "k": "100",
        "corpus": "chat",
        "max_new_tokens": "12",
        "repeats": "1",
    }


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces of tests are kept nowhere else."""
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path / "cache"))


def tuned(tiny: dict[str, str]) -> AppTest:
    app = open_page(PAGE, **tiny)
    assert_sound(app)
    assert "Not tuned yet" in told(app)
    lines = "".join(json.dumps(line) + "\n" for line in PROMPTS).encode()
    app.file_uploader(key="tune_upload").set_value(("own.jsonl", lines, "application/jsonl")).run()
    app.slider(key="tune_gammas").set_value(3).run()
    app.button(key="tune").click().run()
    assert_sound(app)
    assert not app.error
    return app


def test_tuning_recommends_measures_and_explains(tiny: dict[str, str]) -> None:
    """Catches a page that ends in a traceback or says nothing, measured points off the curve, and a dead pin."""
    app = tuned(tiny)
    answer = next(part.value for part in app.html if "vt-answer" in part.value)
    assert "vanilla&#x27;s speed" in answer
    session: TuneSession = app.session_state["_tune"]
    assert [text.prompt.task for text in session.trace.texts] == ["qa", "code", ""]
    app.button(key="tune_measure").click().run()
    assert_sound(app)
    (measured,) = session.measured.values()
    assert table_with(app, "prediction off by") and table_with(app, "method")
    assert "Measured at this point" in told(app)
    assert "FR-Spec" in told(app)
    for one in measured[1:]:
        prediction = next(iter(session.curves.values())).prediction
        assert one.tau == pytest.approx(prediction.tau[prediction.at(one.k, one.gamma)])


def test_the_sidebars_tree_is_replayed(tiny: dict[str, str]) -> None:
    """Catches a page that says nothing of the tree that was chosen, or shows the chain's figures as the tree's."""
    app = tuned({**tiny, "tree": "3,3,10"})
    session: TuneSession = app.session_state["_tune"]
    (found,) = session.trees.values()
    told_taus = table_with(app, "tree, tokens per pass")["tree, tokens per pass"]
    assert [f"{one.tau.median:.3f}" for one in found] == [text.split()[0] for text in told_taus]
    assert "about chains" in told(app)
    session.trees.clear()
    app.run()
    app.button(key="tune_replay").click().run()
    assert_sound(app)
    assert len(session.trees) == 1


def test_another_ranking_needs_no_new_trace(tiny: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a ranking changed afterwards (here by a pin) that shows the old curve, or has the target run again."""
    app = tuned(tiny)
    session: TuneSession = app.session_state["_tune"]
    monkeypatch.setattr(tracing, "record", lambda *_: pytest.fail("the target ran again"))
    costly = [one.token_id for one in next(iter(session.costly.values())) if one.lost > 0]
    app.pills(key="pin_costly").set_value(costly[0]).run()
    assert_sound(app)
    assert app.session_state["pins"] == [str(costly[0])]
    assert len(session.curves) == 2
    app.number_input(key="k").set_value(120).run()
    assert_sound(app)
    assert len(session.curves) == 3
    # The kept trace serves a second press of the button, too.
    app.button(key="tune").click().run()
    assert_sound(app)


def test_the_recommendation_can_be_taken(tiny: dict[str, str]) -> None:
    """Catches a button that leaves k and gamma as they were."""
    app = tuned(tiny)
    curves = app.session_state["_tune"].curves
    ((key, found),) = curves.items()
    # How fast random models are is chance.
    best = replace(found.recommendation, speculate=True)
    curves[key] = replace(found, recommendation=best)
    app.run()
    app.button(key="use_recommended").click().run()
    assert_sound(app)
    assert (app.number_input(key="k").value, app.slider(key="gamma").value) == (best.k, best.gamma)
    (found,) = (one for one in curves.values() if one.recommendation is best)
    curves.update(dict.fromkeys(curves, replace(found, recommendation=replace(best, speculate=False))))
    app.run()
    assert_sound(app)
    assert not [one for one in app.button if one.key == "use_recommended"], "do not speculate, and a button to do so"


def test_changed_settings_are_said(tiny: dict[str, str]) -> None:
    """Catches figures of another temperature or other prompts shown as those of the settings."""
    app = tuned(tiny)
    app.slider(key="temperature").set_value(0.7).run()
    assert_sound(app)
    assert "have changed" in told(app)


def test_bad_prompts_are_a_sentence(tiny: dict[str, str]) -> None:
    """Catches a traceback for a file that is no list of prompts."""
    app = open_page(PAGE, **tiny)
    app.file_uploader(key="tune_upload").set_value(("bad.jsonl", b"nonsense\n", "application/jsonl")).run()
    assert_sound(app)
    assert "bad.jsonl:1" in app.error[0].value.replace("\\", "")


def test_the_shape_lab_measures_and_says_what_is_an_estimate(tiny: dict[str, str]) -> None:
    """Catches an estimate that looks like a measurement."""
    app = open_page(PAGE, **tiny)
    app.selectbox(key="shape_name").set_value("Typed in").run()
    app.number_input(key="shape_hidden").set_value(64)
    app.number_input(key="shape_vocab").set_value(5000)
    app.button(key="shape_run").click().run()
    assert_sound(app)
    assert "An estimate, not a measurement" in app.warning[0].value
