"""How much of the text the first k tokens of the ranking cover."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import streamlit as st

from pages.components import charts
from pages.components.ranking import found_tokens, move_next, named, pin
from pages.components.resources import Recipe, matrix_of, ranking_of
from pages.components.settings import BYTES
from pages.components.state import COVERAGE, Workspace, page_setup, ready
from pages.components.tables import heat_table, table
from pages.components.text import answer, errors_shown, plain, show_error
from vocabtrim_core.coverage import missing_tokens
from vocabtrim_core.errors import SettingError, VocabTrimError
from vocabtrim_core.token_text import byte_ids, readable_tokens
from vocabtrim_core.vocabulary import Ranking, forced_token_ids
from vocabtrim_core.zipf import k_for_coverage, log_spaced_ranks

SHARES = (0.90, 0.95, 0.99)
SIDES = {"calibration": "calibration", "held-out": "held_out"}
MISSING_SHOWN = 40
MISSING_LISTED = 500
BAND_POINTS = 90


def main() -> None:
    workspace = ready(page_setup(COVERAGE))
    with errors_shown():
        sides = {name: side for name, side in SIDES.items() if workspace.has(side)}
        if not sides:
            st.info("These counts are empty. Choose another corpus in the sidebar.", icon=":material/info:")
            st.stop()
        curves = {name: workspace.coverage(side) for name, side in sides.items()}
        reached = {name: {share: k_for_coverage(curve, share) for share in SHARES} for name, curve in curves.items()}
        _sentence(workspace, curves, reached)
        _warnings(workspace, curves)
        _curve(workspace, curves, reached)
        _matrix(workspace)
        _missing(workspace)
        _own_tokens(workspace)
        _tables(workspace, curves, reached)


def _curve(workspace: Workspace, curves: dict[str, np.ndarray], reached: dict[str, dict[float, int | None]]) -> None:
    ranking, band = workspace.ranking, None
    if "held-out" in curves:
        ks = log_spaced_ranks(ranking.vocab_size, BAND_POINTS)
        band = workspace.held_out_interval(ks[ks >= min(ranking.forced, ranking.vocab_size)])
    st.plotly_chart(
        charts.coverage(curves, workspace.k, reached, ranking.forced, band), alt="Coverage of the text against k"
    )
    if band is not None:
        st.caption(
            "The band is where coverage of new text of this kind lies with 95% probability (bootstrap over documents)."
            if np.isfinite(band.low).all()
            else "Too few documents were held out for an interval. Count more text."
        )


def _matrix(workspace: Workspace) -> None:
    """Each corpus's ranking on each corpus's text, and the ranking in use below them."""
    st.subheader("Does a ranking transfer to other text?", anchor=False)
    texts = {key: one for key, one in workspace.corpora.items() if one.counts.held_out.any()}
    state = st.session_state
    state["matrix"] = [key for key in state.get("matrix", texts) if key in texts]
    chosen = st.multiselect(
        "Corpora compared", list(texts), format_func=lambda key: workspace.corpora[key].label, key="matrix"
    )
    if not chosen:
        st.info("Choose at least one corpus with held-out text.", icon=":material/info:")
        return
    recipe = workspace.recipe
    recipes = [Recipe((texts[key],), (1,), pinned=recipe.pinned, banned=recipe.banned) for key in chosen]
    rankings = [_ranking(workspace, one) for one in recipes]
    names = [texts[key].label for key in chosen]
    if all(ranking.digest != workspace.ranking.digest for ranking in rankings):
        rankings.append(workspace.ranking)
        names.append(f"yours: {workspace.ranking.name}")
    with_bytes = _with_bytes(workspace)
    if with_bytes:
        rankings.append(with_bytes)
        names.append("yours, with all bytes pinned")
    # Two corpora may have the same name.
    columns = {key: texts[key].counts.held_out_groups for key in chosen}
    key = (tuple(one.digest for one in rankings), tuple(texts[one].counts.digest for one in chosen))
    found = matrix_of(key, workspace.k, rankings, columns)
    found = replace(found, rows=tuple(names), columns=tuple(names[: len(chosen)]))
    st.html(heat_table(found))
    if len(chosen) > 1:
        own = found.coverage[: len(chosen), : len(chosen)]
        row, column = np.unravel_index(np.argmin(own), own.shape)
        st.caption(
            f"Held-out text at k = {workspace.k:,}. The worst: a ranking from {plain(names[row])} covers "
            f"{own[row, column]:.1%} of {plain(names[column])}, whose own ranking covers {own[column, column]:.1%}."
        )
    if with_bytes:
        st.button(
            "Pin all bytes",
            key="pin_bytes",
            icon=":material/push_pin:",
            on_click=pin,
            args=([BYTES],),
            help="The bytes that characters without a token of their own are spelled with: insurance against scripts "
            "that the text does not show, at some cost for the rest where k is small.",
        )


def _ranking(workspace: Workspace, recipe: Recipe) -> Ranking:
    forced = tuple(forced_token_ids(workspace.tokenizer).tolist())
    return ranking_of(recipe.key, forced, workspace.tokenizer.vocab_size, recipe)


def _with_bytes(workspace: Workspace) -> Ranking | None:
    """The ranking in use with all bytes pinned; None where it has them, or k is too small."""
    recipe = workspace.recipe
    more = set(byte_ids(workspace.tokenizer)) - set(workspace.ranking.ids[: workspace.ranking.forced].tolist())
    if not more or more & set(recipe.banned) or workspace.ranking.forced + len(more) > workspace.k:
        return None
    return _ranking(workspace, replace(recipe, pinned=tuple(sorted({*recipe.pinned, *more}))))


def _missing(workspace: Workspace) -> None:
    st.subheader("What your k misses most", anchor=False)
    state, corpora = st.session_state, workspace.corpora
    if state.get("missing_in") not in corpora:
        state["missing_in"] = next(key for key, one in corpora.items() if one is workspace.corpus)
    key = st.selectbox("In the text of", list(corpora), format_func=lambda one: corpora[one].label, key="missing_in")
    counts = corpora[key].counts.total
    found = missing_tokens(workspace.ranking, workspace.k, counts, MISSING_LISTED)
    outside = int(counts[workspace.ranking.ids[workspace.k :]].sum())
    if not found:
        st.write("Nothing: every token of this text is inside your k.")
        return
    held_out = corpora[key].counts.held_out
    apart = ""
    if held_out.any():
        apart = f" (of its held-out text {held_out[workspace.ranking.ids[workspace.k :]].sum() / held_out.sum():.2%})"
    st.write(
        f"{outside:,} of all its {int(counts.sum()):,} tokens, {outside / counts.sum():.2%}{apart}, are outside. The "
        "most frequent of them; click one to pin it, so that every k keeps it:"
    )
    ids = [one.token_id for one in found]
    texts = dict(zip(ids, readable_tokens(workspace.tokenizer, ids), strict=True))
    times = {one.token_id: one.count for one in found}
    st.pills(
        "Missing tokens",
        ids[:MISSING_SHOWN],
        format_func=lambda token: f"{plain(texts[token])} ×{times[token]:,}",
        key="pin_missing",
        on_change=_pin_missing,
        label_visibility="collapsed",
    )
    with st.expander(f"The first {len(found):,} as a table"):
        listed = {"token": [texts[one] for one in ids], "id": ids, "times": [one.count for one in found]}
        listed["share"] = [f"{one.share:.3%}" for one in found]
        listed["kept from k"] = [one.kept_from for one in found]
        st.dataframe(pd.DataFrame(listed), hide_index=True)


def _pin_missing() -> None:
    token = st.session_state.pop("pin_missing", None)
    if token is not None:
        pin([token])


def _own_tokens(workspace: Workspace) -> None:
    """Any token, by id or text; and what is pinned and banned."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    text = row.text_input("Pin or ban any token: its text, its id, or several ids", key="token", width=420)
    pinning = row.button("Pin", key="pin", disabled=not text, icon=":material/push_pin:")
    banning = row.button("Ban", key="ban", disabled=not text, icon=":material/block:")
    if pinning or banning:
        try:
            tokens = found_tokens(text, workspace.tokenizer)
            if banning:
                _check_not_forced(tokens, workspace)
        except VocabTrimError as error:
            show_error(error)
        else:
            move_next(tokens, banning)
            st.rerun()
    for what, listed, state in (
        ("Pinned", workspace.settings.pinned, "pins"),
        ("Banned", workspace.settings.banned, "bans"),
    ):
        if listed:
            row = st.container(horizontal=True, vertical_alignment="center")
            row.markdown(f"{what}:", width="content")
            for token in listed.split(","):
                row.button(
                    plain(named(token, workspace.tokenizer)),
                    key=f"free-{state}-{token}",
                    icon=":material/close:",
                    help="Click to undo",
                    on_click=_free,
                    args=(state, token),
                )


def _check_not_forced(tokens: list[str], workspace: Workspace) -> None:
    forced = set(forced_token_ids(workspace.tokenizer).tolist())
    if any(token != BYTES and int(token) in forced for token in tokens):
        raise SettingError("This token must stay: the models need it to end a text or a turn.")


def _free(state: str, token: str) -> None:
    st.session_state[state] = [one for one in st.session_state[state] if one != token]


def _sentence(workspace: Workspace, curves: dict[str, np.ndarray], reached: dict[str, dict[float, int | None]]) -> None:
    k, name = workspace.k, next(reversed(curves))
    needed = reached[name][0.99]
    filler = needed is not None and needed > workspace.ranking.observed
    template = "{corpus}: k\u00a0=\u00a0{k} covers {share} of the " + name + " text"
    if len(curves) == 2:
        template += " and {seen} of the calibration text"
    if filler:
        template += "; the tokens that were counted do not reach 99%, so count more text."
    else:
        template += "; for 99% you need k\u00a0=\u00a0{needed}." if needed else "; no k reaches 99%."
    answer(
        template,
        k=f"{k:,}",
        share=f"{curves[name][k - 1]:.2%}",
        corpus=workspace.label,
        seen=f"{next(iter(curves.values()))[k - 1]:.2%}",
        needed=f"{needed:,}" if needed else "",
    )


def _warnings(workspace: Workspace, curves: dict[str, np.ndarray]) -> None:
    ranking, k = workspace.ranking, workspace.k
    if k > ranking.observed:
        st.warning(
            f"Only {ranking.observed:,} tokens are forced or were counted in the calibration text. The other "
            f"{k - ranking.observed:,} of your k = {k:,} are filler, taken in order of their ids: count more text, or "
            "choose a smaller k.",
            icon=":material/warning:",
        )
    if "held-out" not in curves:
        st.warning(
            "No document was held out of these counts, so this is coverage of the very text that the ranking was made "
            "from, which flatters it. Whole documents are held out, equal ones together: count more different "
            "documents, with a held-out share above 0.",
            icon=":material/warning:",
        )
    st.caption(
        "Coverage of text overstates what a drafter keeps: the rare tokens it lacks sit where the target is hardest to "
        "follow anyway, or break a draft that would have gone on. The acceptance on the page Generate is what counts."
    )


def _tables(workspace: Workspace, curves: dict[str, np.ndarray], reached: dict[str, dict[float, int | None]]) -> None:
    st.subheader("k for a coverage", anchor=False)
    goals = {"coverage": [f"{share:.0%}" for share in SHARES]}
    observed = workspace.ranking.observed
    for name, row in reached.items():
        goals[f"k, {name}"] = [
            "not reached" if k is None else f"{k:,}{' (filler)' if k > observed else ''}" for k in row.values()
        ]
    st.html(table(pd.DataFrame(goals)))
    st.subheader("Coverage for a k", anchor=False)
    size = workspace.ranking.vocab_size
    sizes = sorted({workspace.k, size, *(k for k in (1024, 2048, 4096, 8192, 16384, 32768, 65536) if k < size)})
    rows = {"k": [f"{k:,}{' (yours)' if k == workspace.k else ''}" for k in sizes]}
    rows |= {"of the vocabulary": [f"{k / size:.1%}" for k in sizes]}
    rows |= {name: [f"{curve[k - 1]:.2%}" for k in sizes] for name, curve in curves.items()}
    st.html(table(pd.DataFrame(rows)))


main()
