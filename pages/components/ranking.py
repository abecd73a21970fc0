"""The ranking's settings in the sidebar: which corpora in which mixture, what they lean on, pins and bans."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import streamlit as st

from pages.components.resources import Corpus, Recipe
from pages.components.settings import BYTES, MAX_WEIGHT, SHIPPED, Settings, mixture, mixture_text
from pages.components.text import short_name
from vocabtrim_core.errors import SettingError
from vocabtrim_core.shipped import sample_corpora
from vocabtrim_core.token_text import byte_ids, readable_tokens
from vocabtrim_core.tokenization import Tokenizer
from vocabtrim_core.vocabulary import Ranking

AUTO_PRIOR = ""  # the shipped counts for a small text, else nothing
NO_PRIOR = "none"
THIN_TOKENS = 200_000  # of text: fewer say too little about its rarer tokens
BY_COUNTS = ""
# What settings name and the session does not have: waited for until it comes or another choice is made.
AWAITED_MIX, AWAITED_PRIOR, AWAITED_ORDER = "_awaited_mix", "_awaited_prior", "_awaited_order"


def seed(known: Settings) -> None:
    """Give the widgets below the values of the settings."""
    state = st.session_state
    for name in (AWAITED_MIX, AWAITED_PRIOR, AWAITED_ORDER, "_in_its_place"):
        state.pop(name, None)
    _set_mixture(mixture(known.corpus))
    state["prior"], state["order"] = known.prior, known.order
    state["pins"], state["bans"] = (listed.split(",") if listed else [] for listed in (known.pinned, known.banned))


def use(weights: dict[str, int]) -> None:
    """Rank by this mixture of corpora, from the next run on."""
    st.session_state["_next_mixture"] = weights


def use_list(key: str) -> None:
    """Rank by this list, from the next run on."""
    st.session_state["_next_order"] = key


def awaited() -> set[str]:
    """Keys of corpora and lists that the settings name and that are not here."""
    state = st.session_state
    mix = set(state.get(AWAITED_MIX, ())) - set(state.get("_in_its_place", ()))
    return {*mix, *(state[name] for name in (AWAITED_PRIOR, AWAITED_ORDER) if name in state)}


def is_awaited(key: str) -> bool:
    """Whether a corpus that comes now is one that the settings name."""
    return key in awaited()


def leave_out(key: str) -> None:
    """Choose a corpus no longer, since it is removed."""
    state = st.session_state
    state["mix"] = [other for other in state["mix"] if other != key]
    if state["prior"] == key:
        state["prior"] = AUTO_PRIOR


def pin(tokens: Iterable[str]) -> None:
    """Pin token ids (or "bytes"); what was banned is no longer."""
    _move(tokens, "pins", "bans")


def ban(tokens: Iterable[str]) -> None:
    """Ban token ids (or "bytes"); what was pinned is no longer."""
    _move(tokens, "bans", "pins")


def move_next(tokens: list[str], banning: bool) -> None:
    """Pin or ban, from the next run on: the widgets of this one are drawn."""
    st.session_state["_next_tokens"] = tokens, banning


def found_tokens(text: str, tokenizer: Tokenizer) -> list[str]:
    """The ids that a person means: ids with commas or spaces between, "bytes", or a token's text. SettingError."""
    parts = text.replace(",", " ").split()
    if parts and all(part == BYTES or (part.isascii() and part.isdigit()) for part in parts):
        unknown = [part for part in parts if part != BYTES and int(part) >= tokenizer.vocab_size]
        if unknown:
            raise SettingError(f"There is no token {unknown[0]}: the ids end at {tokenizer.vocab_size - 1:,}.")
        return parts
    ids = tokenizer.encode_texts([text])[0] if text else []
    if len(ids) != 1:
        raise SettingError(f"“{text}” is {len(ids)} tokens, not one. Write the text of one, with its space, or ids.")
    return [str(ids[0])]


def sidebar(corpora: dict[str, Corpus], lists: dict[str, Ranking], tokenizer: Tokenizer) -> tuple[Recipe, dict]:
    """Draw the widgets; the recipe that they make, and the settings for the link."""
    if "_next_tokens" in st.session_state:
        tokens, banning = st.session_state.pop("_next_tokens")
        (ban if banning else pin)(tokens)
    weights = _corpora(corpora)
    # With all weights at zero there is nothing to mix, so they count alike.
    used = {key: weight for key, weight in weights.items() if weight} or dict.fromkeys(weights, MAX_WEIGHT)
    state = st.session_state
    changed = any(state[name] for name in ("prior", "order", "pins", "bans"))
    thin = needs_prior(corpora, used)
    with st.expander("Smoothing, pins and bans" + (" (in use)" if changed else ""), icon=":material/tune:"):
        prior, order = _prior(corpora, thin), _order(lists)
        pinned = _tokens("Pinned: kept at every k", "pins", tokenizer)
        banned = _tokens("Banned: never kept", "bans", tokenizer)
        st.caption("Pin missing tokens, or pin and ban any, on the page Coverage.")
    leaning = thin and prior == AUTO_PRIOR and not order
    if leaning:
        tokens_counted = sum(int(corpora[key].counts.calibration.sum()) for key in used)
        st.caption(
            f"This text is small ({tokens_counted:,} tokens to rank by), so its rarer tokens are ranked by the shipped "
            "counts."
        )
        st.button("Rank by this text alone", key="no_prior", on_click=lambda: state.update(prior=NO_PRIOR))
    recipe = Recipe(
        tuple(corpora[key] for key in used),
        tuple(used.values()),
        corpora[SHIPPED] if leaning else corpora.get(prior),
        lists.get(order),
        _ids(pinned, tokenizer),
        _ids(banned, tokenizer),
    )
    asked = {
        "corpus": mixture_text(state.get(AWAITED_MIX, weights)),
        "prior": prior or state.get(AWAITED_PRIOR, AUTO_PRIOR),
        "order": order or state.get(AWAITED_ORDER, BY_COUNTS),
        "pinned": ",".join(pinned),
        "banned": ",".join(banned),
    }
    return recipe, asked


def _corpora(corpora: dict[str, Corpus]) -> dict[str, int]:
    """The chosen corpora with their weights."""
    state = st.session_state
    if "_next_mixture" in state:
        _set_mixture(state.pop("_next_mixture"))
        state.pop(AWAITED_MIX, None)
    elif awaited() & corpora.keys() & set(state.get(AWAITED_MIX, ())):
        _set_mixture(state.pop(AWAITED_MIX))
    wanted = [str(key) for key in state["mix"]]
    # Set anew in any case: Streamlit forgets the choice when the options change.
    state["mix"] = [key for key in wanted if key in corpora] or [next(iter(corpora))]
    if any(key not in corpora for key in wanted):
        state[AWAITED_MIX] = {key: state.get(f"weight-{key}", MAX_WEIGHT) for key in wanted}
        state["_in_its_place"] = state["mix"]
    chosen = st.multiselect(
        "Ranking from the counts of",
        list(corpora),
        format_func=lambda key: corpora[key].label if key in corpora else key,
        key="mix",
        help="The tokens are ranked by how often this text uses them. Choose several corpora to mix them. Count your "
        "own text on the page Calibrate.",
    )
    if chosen != state.get("_in_its_place"):
        state.pop(AWAITED_MIX, None)
    if not chosen:
        st.caption(f"None is chosen, so {corpora[state['_first_corpus']].label} is used.")
        return {state["_first_corpus"]: MAX_WEIGHT}
    state["_first_corpus"] = chosen[0]
    if len(chosen) == 1:
        return {chosen[0]: MAX_WEIGHT}
    weights = {}
    for key in chosen:
        name = f"weight-{key}"
        state.setdefault(name, 50)
        weights[key] = st.slider(f"Weight of {corpora[key].label}", 0, MAX_WEIGHT, step=5, key=name)
    return weights


def needs_prior(corpora: Mapping[str, Corpus], used: Collection[str]) -> bool:
    """Whether the text in use is people's own and too small to rank by alone, and there are shipped counts for it."""
    known = (SHIPPED, *sample_corpora())
    if SHIPPED not in corpora or any(key in known for key in used):
        return False
    # Where all was held out there is nothing to mix.
    return 0 < sum(int(corpora[key].counts.calibration.sum()) for key in used) < THIN_TOKENS


def _prior(corpora: dict[str, Corpus], thin: bool) -> str:
    _await(AWAITED_PRIOR, "prior", [NO_PRIOR, *corpora], AUTO_PRIOR)
    needed = "the shipped counts (this text is small)" if thin else "nothing"
    names = {AUTO_PRIOR: f"what it needs: {needed}", NO_PRIOR: "nothing"}
    return st.selectbox(
        "Thin text leans on",
        [AUTO_PRIOR, NO_PRIOR, *corpora],
        format_func=lambda key: names.get(key) or corpora[key].label,
        key="prior",
        help="A small corpus takes its rarer tokens in the order of this one: of the weight, the share of its tokens "
        "that occur once (Good-Turing).",
    )


def _order(lists: dict[str, Ranking]) -> str:
    state: Any = st.session_state
    state["order"] = state.pop("_next_order", state["order"])
    _await(AWAITED_ORDER, "order", lists, BY_COUNTS)
    if not lists:
        return BY_COUNTS
    return st.selectbox(
        "Order",
        [BY_COUNTS, *lists],
        format_func=lambda key: f"List {short_name(lists[key].name)}" if key else "by the counts above",
        key="order",
        help="A list that was imported on the page Calibrate, instead of counts.",
    )


def _await(name: str, widget: str, here: Collection[str], nothing: str) -> None:
    """Where a widget's choice is not here, let it stand at nothing, and wait; another choice ends the waiting."""
    state = st.session_state
    if state[widget] == nothing and state.get(name) in here:
        state[widget] = state.pop(name)
    elif state[widget] in here:
        state.pop(name, None)
    elif state[widget] != nothing:
        state[name], state[widget] = state[widget], nothing


def _tokens(label: str, key: str, tokenizer: Tokenizer) -> list[str]:
    """Tokens that can be taken away one by one."""
    state = st.session_state
    state[key] = list(state[key])
    if not state[key]:
        return []
    return st.multiselect(label, state[key], format_func=lambda token: named(token, tokenizer), key=key)


def named(token: str, tokenizer: Tokenizer) -> str:
    """A pinned or banned token for people."""
    return "all bytes" if token == BYTES else f"{readable_tokens(tokenizer, [int(token)])[0]} ({token})"


def _ids(tokens: list[str], tokenizer: Tokenizer) -> tuple[int, ...]:
    ids: set[int] = set()
    for token in tokens:
        ids.update(byte_ids(tokenizer) if token == BYTES else [int(token)])
    return tuple(sorted(ids))


def _set_mixture(weights: dict[str, int]) -> None:
    state = st.session_state
    state["mix"] = list(weights)
    if len(weights) > 1:
        state.update({f"weight-{key}": weight for key, weight in weights.items()})


def _move(tokens: Iterable[str], to: str, away: str) -> None:
    state = st.session_state
    moved = [str(token) for token in tokens]
    state[to] = list(dict.fromkeys([*state[to], *moved]))
    state[away] = [token for token in state[away] if token not in moved]
