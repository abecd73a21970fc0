"""Every page run headless (Streamlit's AppTest), each test against a symptom that a user would see."""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from drafters import checkpoints
from html_tables import table_with
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.scriptrunner import StopException
from streamlit.testing.v1 import AppTest
from tiny_models import save_first_layer, save_tiny_llama
from tiny_tokenizer import make_tiny_tokenizer

from pages.components import resources
from pages.components.settings import Settings, mixture
from pages.components.side_by_side import Session
from pages.components.text import short_name
from vocabtrim_core.decoding.engine import Cycle
from vocabtrim_core.drafters import registry
from vocabtrim_core.embedded import embedded_target_folder
from vocabtrim_core.evaluation import comparison
from vocabtrim_core.evaluation.comparison import Turn
from vocabtrim_core.shipped import shipped_tuning
from vocabtrim_core.vocabulary import forced_token_ids

APP = Path(__file__).resolve().parent.parent / "app.py"
SAMPLE = {"corpus": "chat"}
PAGES = [
    "app.py",
    "pages/1_Calibrate.py",
    "pages/2_Coverage.py",
    "pages/3_Trim.py",
    "pages/4_Generate.py",
    "pages/5_Tune.py",
]
TABLE_TAGS = {f"{end}{tag}" for end in ("", "/") for tag in ("table", "thead", "tbody", "tr", "th", "td")} | {
    f"{end}{tag}" for end in ("", "/") for tag in ("details", "summary", "dl", "dt", "dd")
}
BUTTONS = {"pages/4_Generate.py": "run", "pages/5_Tune.py": "tune"}  # of pages that wait for one


@pytest.fixture(scope="session")
def embedded_target() -> Path:
    """The embedded target, fetched into the user's cache folder on first use."""
    return embedded_target_folder()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Query parameters that choose a tiny random pair: pages with models, without minutes."""
    root = tmp_path_factory.mktemp("tiny")
    tokenizer = make_tiny_tokenizer(root / "target")
    make_tiny_tokenizer(root / "drafter")
    target = save_tiny_llama(root / "target", vocab_size=tokenizer.vocab_size + 4)
    save_first_layer(target, root / "drafter", vocab_size=tokenizer.vocab_size + 12)
    return {"target": str(root / "target"), "drafter": str(root / "drafter"), "dtype": "float32", "k": "100"} | SAMPLE


def open_page(page: str, **query: str) -> AppTest:
    """The page as a browser shows it that opens the link."""
    app = AppTest.from_file(str(APP), default_timeout=300)
    app.query_params.update(query)
    if page != "app.py":
        app.switch_page(page)
    return app.run()


def told(app: AppTest) -> str:
    """What the main part says: the answer, captions, cards and chips as text without tags."""
    parts = [*app.html, *app.markdown, *app.caption, *app.info, *app.warning, *app.error]
    return html.unescape(re.sub(r"<[^>]+>", "", " ".join(str(part.value) for part in parts)))


def assert_sound(app: AppTest) -> None:
    assert not app.exception, [one.value for one in app.exception]


@pytest.mark.parametrize("page", PAGES)
def test_newcomer_sees_filled_pages(page: str, embedded_target: Path) -> None:
    """Catches a page that is blank, or a traceback, before anything was uploaded."""
    app = open_page(page)
    assert_sound(app)
    assert not app.error
    answers = [part.value for part in app.html if "vt-answer" in part.value]
    assert answers
    assert page in BUTTONS or re.search(r"<b>[\d,.]+", answers[0])


@pytest.mark.parametrize("page", PAGES)
def test_every_page_offers_the_fetch(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a first start that fails, or downloads without asking, because the model is not there yet."""
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path))
    app = open_page(page)
    assert_sound(app)
    assert not app.error
    assert app.button(key="fetch").label == "Fetch the model"
    assert not list(tmp_path.iterdir())


def test_link_restores_the_settings(tiny: dict[str, str]) -> None:
    """Catches a shared link that opens with the default settings."""
    asked = {"k": "123", "gamma": "5", "temperature": "0.5", "top_p": "0.9", "seed": "7", "max_new_tokens": "33"}
    app = open_page("pages/2_Coverage.py", **(tiny | asked))
    assert_sound(app)
    assert app.number_input(key="k").value == 123
    assert app.slider(key="gamma").value == 5
    assert app.slider(key="temperature").value == 0.5
    assert app.slider(key="top_p").value == 0.9
    assert app.number_input(key="seed").value == 7
    assert app.number_input(key="max_new_tokens").value == 33
    assert app.query_params == Settings.from_query(tiny | asked).to_query()


def test_settings_survive_page_changes(tiny: dict[str, str]) -> None:
    """Catches settings that jump back when another page is opened, or that leave the link."""
    app = open_page("app.py", **tiny)
    app.number_input(key="k").set_value(77).run()
    app.slider(key="gamma").set_value(4).run()
    app.slider(key="temperature").set_value(0.7).run()
    for page in PAGES[1:] + PAGES[:1]:
        app.switch_page(page).run()
        assert_sound(app)
        assert app.number_input(key="k").value == 77
        assert app.slider(key="gamma").value == 4
        assert app.slider(key="temperature").value == 0.7
        assert app.text_input(key="target").value == tiny["target"]
        kept = tiny | {"k": "77", "gamma": "4", "temperature": "0.7"}
        assert app.query_params == Settings.from_query(kept).to_query()


def test_bad_link_falls_back(tiny: dict[str, str]) -> None:
    """Catches a traceback, or an impossible setting, from a mistyped link."""
    bad = {"k": "many", "gamma": "99", "temperature": "nan", "top_p": "-1", "seed": "1.5", "corpus": "gone"}
    app = open_page("pages/2_Coverage.py", **(tiny | bad | {"dtype": "int8", "unknown": "1"}))
    assert_sound(app)
    assert app.number_input(key="k").value == 4096
    assert app.slider(key="gamma").value == shipped_tuning("float32").gamma
    assert app.slider(key="temperature").value == 0.0
    assert "unknown" not in app.query_params


@pytest.mark.parametrize("k", [1, 1_000_000])
@pytest.mark.parametrize("page", PAGES)
def test_k_out_of_range_is_explained(page: str, k: int, tiny: dict[str, str]) -> None:
    """Catches a k below the forced tokens, or above the vocabulary, that crashes a page or is silently replaced."""
    app = open_page(page, **(tiny | {"k": str(k)}))
    assert_sound(app)
    assert f"k = {k:,} is outside" in app.sidebar.error[0].value.replace("\\", "")


def test_k_slider_and_number_agree(tiny: dict[str, str]) -> None:
    """Catches two widgets for k that show different values."""
    app = open_page("pages/2_Coverage.py", **tiny)
    app.select_slider(key="k_slider").set_value(64).run()
    assert app.number_input(key="k").value == 64
    app.number_input(key="k").set_value(250).run()
    assert app.select_slider(key="k_slider").value == 256


def test_missing_tokenizer_is_a_sentence(tmp_path: Path) -> None:
    """Catches a traceback, and a sidebar that cannot be corrected, after a mistyped model folder."""
    app = open_page("pages/2_Coverage.py", target=str(tmp_path))
    assert_sound(app)
    assert "tokenizer.json" in app.error[0].value
    app.text_input(key="target").set_value("embedded").run()
    assert_sound(app)
    assert not app.error


def test_missing_drafter_is_a_sentence(tiny: dict[str, str], tmp_path: Path) -> None:
    """Catches a traceback on the pages that load models."""
    for page in PAGES[3:]:
        app = open_page(page, **(tiny | {"drafter": str(tmp_path)}))
        if page in BUTTONS:
            app.button(key=BUTTONS[page]).click().run()
        assert_sound(app)
        assert "config.json" in app.error[0].value.replace("\\", "")


HOSTILE_PATHS = {"long": "a" * 300, "user": "~nosuchuser/x", "loop": "loop", "device": "/dev/zero", "bidi": "\u202egpj"}


@pytest.fixture
def hostile_path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A path of the kind that `request.param` names; the hub is out of reach."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "loop").symlink_to("loop")
    path = HOSTILE_PATHS[request.param]
    return str(tmp_path / path) if path == "loop" else path


@pytest.mark.parametrize("hostile_path", HOSTILE_PATHS, indirect=True)
def test_hostile_paths_are_sentences(tiny: dict[str, str], hostile_path: str) -> None:
    """Catches a traceback, or a page without navigation, after a path that the system cannot even look at."""
    app = open_page("pages/2_Coverage.py", target=hostile_path)
    assert_sound(app)
    assert app.text_input(key="target").value == hostile_path
    assert "There is no folder" in app.error[0].value and "\u202e" not in app.error[0].value
    app = open_page("pages/3_Trim.py", **(tiny | {"drafter": hostile_path}))
    assert_sound(app)
    assert "There is no folder" in app.error[0].value
    app = open_page("pages/1_Calibrate.py", **tiny)
    app.text_input(key="place").set_value(hostile_path).run()
    app.button(key="count_place").click().run()
    assert_sound(app)
    assert re.search("cannot be read|does not exist|not a file|kind that is not known", app.error[0].value)


def upload(app: AppTest, *files: tuple[str, bytes]) -> AppTest:
    app.file_uploader(key="uploads").set_value([(name, data, "text/plain") for name, data in files]).run()
    return app.button(key="count").click().run()


def cards(app: AppTest) -> list[str]:
    """Titles of the corpus cards."""
    titles = [re.findall(r"<h4>(.*?)</h4>", part.value) for part in app.html]
    return [title for found in titles for title in found if title not in ("sha256 of the files", "Tokenizer")]


def test_bad_upload_keeps_the_rest(tiny: dict[str, str]) -> None:
    """Catches one bad file that hides the page, loses other corpora, or goes unexplained."""
    app = open_page("pages/1_Calibrate.py", **tiny)
    before = cards(app)
    files = ("good.txt", b"The cat sat on the mat. " * 50), ("bad.txt", b"\0\1\2"), ("empty.md", b"")
    upload(app, *files)
    assert_sound(app)
    errors = " ".join(error.value for error in app.error)
    assert "bad.txt" in errors and "empty.md" in errors
    assert cards(app) == [*before, "good.txt"]
    assert told(app).count("good.txt") >= 3  # the answer, the card, where it comes from
    app.number_input(key="k").set_value(60).run()
    assert cards(app) == [*before, "good.txt"]


def test_skipped_lines_are_named(tiny: dict[str, str]) -> None:
    """Catches malformed JSONL lines that are dropped without a word."""
    app = open_page("pages/1_Calibrate.py", **tiny)
    lines = b'{"text": "the cat sat"}\n{"text": 3}\nnonsense\n{"messages": [{"role": "user", "content": "hello"}]}\n'
    upload(app, ("mixed.jsonl", lines))
    assert_sound(app)
    warning = app.warning[0].value.replace("\\", "")
    assert "2 lines were skipped" in warning and "line 2" in warning and "line 3" in warning


def test_same_content_is_counted_once(tiny: dict[str, str]) -> None:
    """Catches counts kept under a file's name: the same text twice, or another text taken for the first."""
    app = open_page("pages/1_Calibrate.py", **tiny)
    before = cards(app)
    upload(app, ("one.txt", b"the cat and the dog " * 9), ("same.txt", b"the cat and the dog " * 9))
    assert cards(app) == [*before, "one.txt"]
    upload(app, ("one.txt", b"another text altogether " * 9))
    assert cards(app) == [*before, "one.txt", "one.txt"]


def test_counts_load_merge_and_remove(tiny: dict[str, str]) -> None:
    """Catches saved counts that cannot be loaded again, and a merge that loses tokens."""
    app = open_page("pages/1_Calibrate.py", **tiny)
    upload(app, ("one.txt", b"the cat sat on the mat " * 20), ("two.txt", b"the dog saw the cat " * 20))
    own = app.session_state["_own_corpora"]
    first, second = own.values()
    app.multiselect(key="merge_these").set_value(list(own)).run()
    app.button(key="merge").click().run()
    assert_sound(app)
    merged = list(app.session_state["_own_corpora"].values())[-1]
    assert merged.counts.tokens == first.counts.tokens + second.counts.tokens
    assert app.multiselect(key="mix").value == list(app.session_state["_own_corpora"])[-1:]

    other = open_page("pages/1_Calibrate.py", **tiny)
    other.file_uploader(key="saved_counts").set_value(("kept.npz", merged.counts.to_bytes(), "")).run()
    other.button(key="load").click().run()
    assert_sound(other)
    (loaded,) = other.session_state["_own_corpora"].values()
    assert loaded.counts.digest == merged.counts.digest
    (key,) = other.session_state["_own_corpora"]
    other.button(key=f"remove-{key}").click().run()
    assert_sound(other)
    assert not other.session_state["_own_corpora"]


def test_wrong_counts_file_is_a_sentence(tiny: dict[str, str]) -> None:
    """Catches a traceback from a file that is not a counts file, and counts of another tokenizer that are mixed in."""
    app = open_page("pages/1_Calibrate.py", **tiny)
    app.file_uploader(key="saved_counts").set_value(("no.npz", b"PK nothing", "")).run()
    app.button(key="load").click().run()
    assert_sound(app)
    assert "not a counts file" in app.error[0].value
    shipped = next((APP.parent / "data" / "rankings").glob("*.npz")).read_bytes()
    app.file_uploader(key="saved_counts").set_value(("shipped.npz", shipped, "")).run()
    app.button(key="load").click().run()
    assert_sound(app)
    assert "another tokenizer" in app.error[0].value
    assert "How often the tokens occur" in [part.value for part in app.subheader]


def test_uploads_cannot_inject_html(tiny: dict[str, str]) -> None:
    """Catches a file's name or content that reaches the page as markup."""
    app = open_page("pages/1_Calibrate.py", **tiny)
    attack = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    upload(app, (f"{attack[:25]}.txt".replace("/", "_"), attack.encode() * 30))
    upload(app, ("[click](http://evil.example) :red[x] ![](http://evil.example).txt".replace("/", "_"), b"\0"))
    for page in PAGES[1:4]:
        app.switch_page(page).run()
        assert_sound(app)
        for part in app.html:
            assert "<script" not in part.value and "<img" not in part.value
    assert all(not re.search(r"(?<!\\)\[", error.value) for error in app.error)


def test_coverage_says_where_it_flatters(tiny: dict[str, str]) -> None:
    """Catches coverage of the calibration text, or of filler tokens, sold as coverage of new text."""
    app = open_page("pages/1_Calibrate.py", **tiny)
    app.number_input(key="holdout-upload").set_value(0.0).run()
    upload(app, ("short.txt", b"the cat"))
    app.switch_page("pages/2_Coverage.py").run()
    assert_sound(app)
    said = told(app)
    assert "filler" in said
    assert "No document was held out" in said


def ranks(app: AppTest, token: int) -> int:
    """Where the ranking in use on the page has a token."""
    settings = app.session_state["_settings"]
    tokenizer = resources.tokenizer_of(settings.target)
    name = next(iter(mixture(settings.corpus)))
    pinned, banned = (tuple(map(int, filter(None, ids.split(",")))) for ids in (settings.pinned, settings.banned))
    recipe = resources.Recipe(
        (resources.sample_corpus(name, tokenizer.fingerprint, tokenizer),), (1,), pinned=pinned, banned=banned
    )
    forced = tuple(forced_token_ids(tokenizer).tolist())
    return resources.ranking_of(recipe.key, forced, tokenizer.vocab_size, recipe).ids.tolist().index(token)


def test_mixture_changes_the_figures_and_the_link(tiny: dict[str, str]) -> None:
    """Catches sliders of a mixture that do nothing, or that are lost on another page or in the link."""
    app = open_page("pages/1_Calibrate.py", **(tiny | {"k": "60"}))
    app.button(key="mix-chinese").click().run()
    assert_sound(app)
    app.switch_page("pages/2_Coverage.py").run()
    assert_sound(app)
    even = told(app)
    assert "50% Sample chats + 50% Sample Chinese" in even
    app.slider(key="weight-chat").set_value(100).run()
    app.slider(key="weight-chinese").set_value(0).run()
    assert_sound(app)
    assert told(app) != even
    assert app.query_params["corpus"] == "chat:100,chinese:0"
    app.switch_page("pages/3_Trim.py").run()
    assert_sound(app)
    assert app.slider(key="weight-chat").value == 100
    again = open_page("pages/2_Coverage.py", **(tiny | {"k": "60", "corpus": "chat:100,chinese:0"}))
    assert again.multiselect(key="mix").value == ["chat", "chinese"]
    assert again.slider(key="weight-chinese").value == 0


def test_all_weights_zero_is_no_traceback(tiny: dict[str, str]) -> None:
    """Catches a mixture whose sliders all stand at zero, or without a corpus, that ends in an error."""
    app = open_page("pages/2_Coverage.py", **(tiny | {"corpus": "chat:0,code:0"}))
    assert_sound(app)
    assert not app.error
    app.multiselect(key="mix").set_value([]).run()
    assert_sound(app)
    assert not app.error


def test_pin_and_ban_move_tokens(tiny: dict[str, str]) -> None:
    """Catches a pin that does not keep its token, a ban that does not drop it, and either that cannot be undone."""
    app = open_page("pages/2_Coverage.py", **(tiny | {"k": "60"}))
    tokenizer = resources.tokenizer_of(tiny["target"])
    rare = tokenizer.vocab_size - 1
    app.text_input(key="token").set_value(str(rare)).run()
    app.button(key="pin").click().run()
    assert_sound(app)
    assert app.session_state["_settings"].pinned == str(rare)
    assert ranks(app, rare) < 60
    app.button(key="ban").click().run()
    assert_sound(app)
    assert (app.session_state["_settings"].pinned, app.session_state["_settings"].banned) == ("", str(rare))
    assert ranks(app, rare) == tokenizer.vocab_size - 1
    app.switch_page("pages/3_Trim.py").run()
    assert_sound(app)
    app.switch_page("pages/2_Coverage.py").run()
    app.button(key=f"free-bans-{rare}").click().run()
    assert_sound(app)
    assert app.session_state["_settings"].banned == ""


def test_banned_tokens_bound_k(tiny: dict[str, str]) -> None:
    """Catches a k slider that takes banned tokens in without saying so."""
    tokenizer = resources.tokenizer_of(tiny["target"])
    size = tokenizer.vocab_size
    banned = ",".join(map(str, range(size - 20, size)))
    app = open_page("pages/2_Coverage.py", **(tiny | {"k": str(size - 5), "banned": banned}))
    assert_sound(app)
    assert "banned" in app.sidebar.error[0].value
    assert app.select_slider(key="k_slider").options[-2:] == [f"{size - 20:,}", f"{size:,}"]


def test_forced_tokens_cannot_be_banned(tiny: dict[str, str]) -> None:
    """Catches a ban of an end token, after which a drafter never ends, or a page that is blocked by it."""
    app = open_page("pages/2_Coverage.py", **tiny)
    control = resources.tokenizer_of(tiny["target"]).control_ids[0]
    app.text_input(key="token").set_value(str(control)).run()
    app.button(key="ban").click().run()
    assert_sound(app)
    assert "must stay" in app.error[0].value
    blocked = open_page("pages/2_Coverage.py", **(tiny | {"banned": str(control)}))
    assert_sound(blocked)
    assert "banned must stay" in blocked.error[0].value
    blocked.multiselect(key="bans").set_value([]).run()
    assert not blocked.error


def test_matrix_shows_the_domain_gap(embedded_target: Path) -> None:
    """Catches a matrix in which every ranking serves every text, or whose rows and columns are swapped."""
    app = open_page("pages/2_Coverage.py", k="2048")
    assert_sound(app)
    said = told(app)
    assert re.search(r"The worst: a ranking from Sample \w+ covers [\d.]+% of Sample Chinese", said)


def test_folder_is_one_corpus_and_names_its_bad_records(
    tiny: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a folder that cannot be counted, an encoding that is guessed silently, or a bad file that is hidden."""
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_bytes("the cat sat on the mat. café ".encode("cp1252") * 50)
    (folder / "two.jsonl.gz").write_bytes(gzip.compress(b'{"body": "the dog saw the cat"}\nnonsense\n' * 5))
    app = open_page("pages/1_Calibrate.py", **tiny)
    app.text_input(key="place").set_value(str(folder)).run()
    app.button(key="count_place").click().run()
    assert_sound(app)
    assert not app.error
    assert short_name(str(folder)) in cards(app)
    said = told(app).replace("\\", "")
    assert "two.jsonl.gz line 2" in said
    assert "one.txt is not valid UTF-8" in said.replace("texts/", "")
    app.text_input(key="place").set_value(str(tmp_path / "nowhere")).run()
    app.button(key="count_place").click().run()
    assert_sound(app)
    assert "nowhere" in app.error[0].value


def test_cancelled_count_goes_on_where_it_was(
    tiny: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a Cancel that leaves a half-counted corpus, that keeps counting, or after which all is counted again."""
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.txt").write_text(f"the cat number {number} sat on the mat. " * 50)
    app = open_page("pages/1_Calibrate.py", **tiny)
    app.text_input(key="place").set_value(str(folder)).run()
    drawn = DeltaGenerator.progress

    def cancel(bar: DeltaGenerator, share: float, *rest: object) -> DeltaGenerator:
        if share > 0.5:
            # What Streamlit raises at the next step of a page when somebody clicks.
            raise StopException
        return drawn(bar, share, *rest)

    with monkeypatch.context() as clicked:
        clicked.setattr(DeltaGenerator, "progress", cancel)
        app.button(key="count_place").click().run()
    assert_sound(app)
    assert list((tmp_path / "cache" / "counting").glob("*.npz"))
    app.run()
    assert_sound(app)
    assert short_name(str(folder)) not in cards(app)
    app.button(key="count_place").click().run()
    assert_sound(app)
    assert short_name(str(folder)) in cards(app)
    assert re.search(r"[1-5] of 6 parts had been counted before", told(app))


def test_data_set_without_network_is_a_sentence(
    tiny: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a traceback, or a page that says nothing, where a data set's name is wrong or the hub out of reach."""
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    app = open_page("pages/1_Calibrate.py", **tiny)
    app.text_input(key="place").set_value("hf:nobody/nothing:train").run()
    app.button(key="count_place").click().run()
    assert_sound(app)
    (error,) = app.error
    assert "nobody/nothing" in error.value and "Check its name and the connection" in error.value


def test_model_writes_text_once(tiny: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches text of the model that cannot be made, is not ranked by, or is written again each time."""
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path))
    app = open_page("pages/1_Calibrate.py", **(tiny | {"max_new_tokens": "6"}))
    lines = b'{"prompt": "the cat"}\n{"prompt": "the dog"}\n'
    app.file_uploader(key="prompt_file").set_value(("asked.jsonl", lines, "")).run()
    app.button(key="write").click().run()
    assert_sound(app)
    assert not app.error
    assert "2 answers of the target, 2 of them written now" in told(app)
    (path,) = (tmp_path / "generated").iterdir()
    assert len(path.read_text().splitlines()) == 2
    other = open_page("pages/1_Calibrate.py", **(tiny | {"max_new_tokens": "6"}))
    other.file_uploader(key="prompt_file").set_value(("asked.jsonl", lines, "")).run()
    other.button(key="write").click().run()
    assert "0 of them written now" in told(other)


def test_lists_of_others_rank(tiny: dict[str, str]) -> None:
    """Catches a list without counts that is refused, or loaded and then ignored."""
    app = open_page("pages/1_Calibrate.py", **tiny)
    listed = list(range(150, 250))
    app.file_uploader(key="saved_counts").set_value(("freq.json", json.dumps(listed).encode(), "")).run()
    app.button(key="load").click().run()
    assert_sound(app)
    assert not app.error
    assert "list without counts" in told(app)
    assert app.session_state["_settings"].order.startswith("list-")
    counts = {str(token): 10 for token in listed}
    app.file_uploader(key="saved_counts").set_value(("counts.json", json.dumps(counts).encode(), "")).run()
    app.button(key="load").click().run()
    assert_sound(app)
    assert "counts" in cards(app)
    for page in PAGES:
        app.switch_page(page).run()
        assert_sound(app)


def test_stop_string_ends_the_text(embedded_target: Path) -> None:
    """Catches a stop string that is ignored."""
    query = {"max_new_tokens": "24", "repeats": "1", "stop_string": "e"}
    app = generate(open_page("pages/4_Generate.py", **query), "Say hello.")
    assert_sound(app)
    assert "stop string" in told(app)


def generate(app: AppTest, prompt: str) -> AppTest:
    app.text_area(key="prompt").set_value(prompt).run()
    return app.button(key="run").click().run()


def test_generate_compares_and_stays_lossless(tiny: dict[str, str]) -> None:
    """Catches figures that are missing, a text that depends on the drafter, and a speed that is not named."""
    app = generate(open_page("pages/4_Generate.py", **(tiny | {"max_new_tokens": "12", "repeats": "2"})), "the cat")
    assert_sound(app)
    said = told(app)
    # On a busy machine there is no verdict.
    assert re.search(r"faster|SLOWER|too much for a verdict", said) and "identical, token for token" in said
    assert table_with(app, "method")["method"] == ["Vanilla", "Full vocabulary", "Trimmed"]
    session = app.session_state["_side_by_side"]
    assert session.complete and len(session.cycles) == 6
    app.switch_page("app.py").run()
    assert "Your last run" in told(app)


def test_texts_in_bfloat16_are_compared_at_fixed_rows(tiny: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches near ties of the timed passes that are told as the method's doing; an engine or a bound left unsaid."""
    # Which numbers of rows have equal bits, if any, depends on the processor.
    monkeypatch.setattr(comparison, "fixed_rows", lambda target, at_least: at_least)
    settings = tiny | {"dtype": "bfloat16", "max_new_tokens": "8", "repeats": "1", "gamma": "2"}
    app = generate(open_page("pages/4_Generate.py", **settings), "the cat")
    assert_sound(app)
    said = told(app)
    assert "again with every pass of one size: token for token, bit for bit" in said
    assert "lean: its logits agree" in said and "an efficiency of" in said and "of the wall time" in said


def tree_texts(app: AppTest) -> dict[str, list[str]]:
    """The tokens of the drawn tree by what became of them."""
    charts = [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]
    (tree,) = (chart for chart in charts if any(trace.get("name") == "before the draft" for trace in chart["data"]))
    return {trace["name"]: trace["text"] for trace in tree["data"] if "name" in trace}


def test_draft_tree_of_a_cycle_can_be_seen(tiny: dict[str, str]) -> None:
    """Catches trees that cannot be asked for, whose nodes are not drawn, or a chosen cycle that draws another one."""
    query = tiny | {"tree": "3,3,8", "max_new_tokens": "24", "repeats": "1"}
    app = generate(open_page("pages/4_Generate.py", **query), "the cat and the dog")
    assert_sound(app)
    assert "identical, token for token" in told(app)
    assert app.slider(key="gamma").disabled
    session = app.session_state["_side_by_side"]
    cycles = session.shown("trimmed")
    assert any(len(cycle.drafted_ids) > cycle.depth for cycle in cycles)
    for number, cycle in enumerate(cycles, start=1):
        app.number_input(key="tree_cycle").set_value(number).run()
        assert_sound(app)
        drawn = tree_texts(app)
        assert len(drawn.get("accepted", [])) == cycle.accepted
        assert len(drawn.get("correction from outside k", [])) == cycle.out_of_vocabulary
        own = sum(len(drawn.get(name, [])) for name in ("correction", "correction from outside k", "bonus", "no draft"))
        assert sum(map(len, drawn.values())) == 1 + len(cycle.drafted_ids) + own
        assert all("\ufffd" not in part.value for part in app.html)
    figures = table_with(app, "drafted")
    assert 2 < float(figures["drafted"][2]) <= 8
    assert float(figures["acceptance length"][2]) == pytest.approx(24 / len(cycles), abs=0.006)


def test_chosen_cycle_fits_the_next_run(tiny: dict[str, str]) -> None:
    """Catches an error where the next run has fewer cycles than the number chosen, or other methods."""
    query = tiny | {"max_new_tokens": "24", "repeats": "1"}
    app = generate(open_page("pages/4_Generate.py", **query), "the cat and the dog")
    last = len(app.session_state["_side_by_side"].shown("trimmed"))
    app.number_input(key="tree_cycle").set_value(last).run()
    app.number_input(key="max_new_tokens").set_value(2).run()
    app.button(key="run").click().run()
    assert_sound(app)
    assert app.number_input(key="tree_cycle").value < last
    app.selectbox(key="drafter").set_value("lookup").run()
    app.button(key="run").click().run()
    assert_sound(app)
    assert tree_texts(app)


def test_drafter_without_head_leaves_nothing_to_trim(tiny: dict[str, str]) -> None:
    """Catches a page that crashes for prompt lookup, or that shows a trimmed head where there is none."""
    query = tiny | {"drafter": "lookup", "max_new_tokens": "24", "repeats": "1"}
    app = open_page("pages/3_Trim.py", **query)
    assert_sound(app)
    assert "nothing to trim" in told(app)
    app.switch_page("pages/4_Generate.py").run()
    generate(app, "the cat and the dog and the cat")
    assert_sound(app)
    assert not app.error
    assert "nothing to trim" in told(app)
    assert table_with(app, "method")["method"] == ["Vanilla", "Prompt lookup"]
    charts = [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]
    assert not any("Full vocabulary" in str(chart) for chart in charts)
    for page in PAGES:
        app.switch_page(page).run()
        assert_sound(app)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_own_draft_head_runs_with_trees(tiny: dict[str, str], kind: str, tmp_path: Path) -> None:
    """Catches a folder with an EAGLE or Medusa head that the pages cannot load, trim, decode with or draw."""
    size = resources.tokenizer_of(tiny["target"]).vocab_size + 4
    tensors = checkpoints.eagle1(embeddings=False) if kind == "eagle" else checkpoints.medusa(own_heads=False)
    checkpoints.save(tmp_path, tensors, checkpoints.config(vocab_size=size))
    query = tiny | {"drafter": str(tmp_path), "tree": "3,3,8", "max_new_tokens": "12", "repeats": "1"}
    app = generate(open_page("pages/4_Generate.py", **query), "the cat")
    assert_sound(app)
    assert not app.error
    assert "identical, token for token" in told(app)
    assert len(tree_texts(app)) > 1
    app.switch_page("pages/3_Trim.py").run()
    assert_sound(app)
    assert "the head reads" in told(app)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_drafter_that_is_not_there_is_a_sentence(
    tiny: dict[str, str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a traceback where the files of a drafter that can be chosen are missing."""
    monkeypatch.setattr(registry, "_SHIPPED", tmp_path)
    app = generate(open_page("pages/4_Generate.py", **(tiny | {"drafter": kind})), "the cat")
    assert_sound(app)
    assert f"{kind} drafter" in app.error[0].value and "missing" in app.error[0].value


def test_bad_prompts_keep_the_last_run(tiny: dict[str, str]) -> None:
    """Catches an empty or too long prompt that crashes the page or throws results away."""
    query = tiny | {"max_new_tokens": "4", "repeats": "1"}
    app = generate(open_page("pages/4_Generate.py", **query), "the dog")
    kept = app.session_state["_side_by_side"]
    for prompt, sentence in (("  ", "prompt is empty"), ("long " * 3000, "Shorten the prompt")):
        generate(app, prompt)
        assert_sound(app)
        assert sentence in app.error[0].value
        assert app.session_state["_side_by_side"] is kept
        assert table_with(app, "tokens/s")


def test_prompt_cannot_inject_html(tiny: dict[str, str]) -> None:
    """Catches a prompt, or what the model makes of it, that reaches the page as markup."""
    query = tiny | {"max_new_tokens": "24", "repeats": "1", "temperature": "1.5"}
    app = generate(open_page("pages/4_Generate.py", **query), "<script>alert(1)</script>" * 3)
    assert_sound(app)
    for part in app.html:
        tags = set(re.findall(r"<(/?\w+)", re.sub(r"<style>.*?</style>", "", part.value, flags=re.DOTALL)))
        assert tags <= {"div", "/div", "span", "/span", "p", "/p", "b", "/b", "br", *TABLE_TAGS}


def test_embedded_pair_end_to_end(embedded_target: Path) -> None:
    """Catches a real pair that the page cannot load, decode or compare."""
    query = {"max_new_tokens": "4", "repeats": "1", "k": "2048", "dtype": "float32"}
    app = generate(open_page("pages/4_Generate.py", **query), "Say hello.")
    assert_sound(app)
    assert not app.error
    assert "identical, token for token" in told(app)


def test_two_sessions_do_not_time_at_once(tiny: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a run that starts while another session is timing, and one that never starts after it."""
    notices: list[str] = []
    lock = resources._timing_lock()
    lock.acquire()
    monkeypatch.setattr(DeltaGenerator, "info", lambda self, body, **options: notices.append(body) or lock.release())
    app = generate(open_page("pages/4_Generate.py", **(tiny | {"max_new_tokens": "4", "repeats": "1"})), "the mat")
    assert_sound(app)
    assert "Another session" in notices[0]
    assert app.session_state["_side_by_side"].complete
    assert lock.acquire(blocking=False)
    lock.release()


def test_interrupted_run_keeps_its_tokens_and_frees_the_machine(tiny: dict[str, str]) -> None:
    """Catches a Stop that loses what was decoded, or after which nobody can run any more."""
    app = generate(open_page("pages/4_Generate.py", **(tiny | {"max_new_tokens": "8", "repeats": "1"})), "the dog")
    session = app.session_state["_side_by_side"]
    again = Session(session.contest, session.settings, session.prompt, session.prompt_ids)

    def stop_at_third_cycle(turn: Turn) -> None:
        if len(again.cycles[turn]) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), resources.machine_to_itself():
        again.run(stop_at_third_cycle)
    assert not again.complete
    assert len(again.shown("vanilla")) == 3
    assert again.summarise() is None
    assert resources._timing_lock().acquire(blocking=False)
    resources._timing_lock().release()


def test_a_run_may_be_looked_at_while_it_grows(tiny: dict[str, str]) -> None:
    """Catches a dictionary that changes its size under a reader: after a click on Stop the page runs again in another
    thread, and the run that it stops goes on until its next drawing."""
    app = generate(open_page("pages/4_Generate.py", **(tiny | {"max_new_tokens": "8", "repeats": "1"})), "the dog")
    session = app.session_state["_side_by_side"]
    again = Session(session.contest, session.settings, session.prompt, session.prompt_ids)
    readers: list[Iterator[tuple[Turn, list[Cycle]]]] = []

    def look(turn: Turn) -> None:
        for reader in readers:
            _, cycles = next(reader)
            assert cycles
        readers[:] = [iter(again.cycles.items())]

    again.run(look)
    assert again.complete
    assert again.cycles.keys() == session.cycles.keys()
