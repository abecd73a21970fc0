"""Counting text: what it looks like in tokens."""

from __future__ import annotations

from functools import reduce

import numpy as np
import streamlit as st

from pages.components import charts, tokens
from pages.components.resources import HOLDOUT, Corpus, counted
from pages.components.settings import SHIPPED
from pages.components.state import CALIBRATE, SAMPLE, Workspace, choose_corpus, own_corpora, page_setup, ready
from pages.components.text import answer, card, errors_shown, plain, show_error
from vocabtrim_core.corpora import MAX_FILE_BYTES, SUFFIXES, CorpusFile
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.errors import CorpusError, TokenizerError, VocabTrimError
from vocabtrim_core.zipf import fit_zipf, rank_frequency

CHIPS = 48
MAX_CORPORA = 30


def main() -> None:
    workspace = ready(page_setup(CALIBRATE))
    with errors_shown():
        _sentence(workspace)
        _sources(workspace)
        _cards(workspace)
        _frequencies(workspace)


def _sentence(workspace: Workspace) -> None:
    counts = workspace.corpus.counts
    frequencies = rank_frequency(counts.total)
    fit = fit_zipf(counts.total)
    if not len(frequencies):
        answer("{corpus} has no tokens.", corpus=workspace.corpus.label)
        return
    top = min(1000, max(1, len(frequencies) // 10))
    template = (
        "{corpus} has {tokens} tokens, {distinct} different ones ({used} of the vocabulary). The {n} most frequent "
        "make up {share} of the text"
    )
    template += "; frequency falls with rank to the power {exponent}." if fit else "."
    answer(
        template,
        corpus=workspace.corpus.label,
        tokens=f"{counts.tokens:,}",
        distinct=f"{counts.distinct:,}",
        used=f"{counts.distinct / counts.vocab_size:.1%}",
        n=f"{top:,}",
        share=f"{frequencies[:top].sum() / counts.tokens:.1%}",
        exponent=f"−{fit.exponent:.2f}" if fit else "",
    )


def _sources(workspace: Workspace) -> None:
    with st.expander("Add your own text", expanded=True, icon=":material/upload_file:"):
        left, right = st.columns([3, 2], gap="large")
        with left:
            uploads = st.file_uploader(
                "Text or chats (.txt, .md, .jsonl), several files at once",
                type=[suffix.removeprefix(".") for suffix in SUFFIXES],
                accept_multiple_files=True,
                key="uploads",
                help="A .jsonl line is an object with `text`, or with `messages`, a list of `role` and `content`.",
            )
            row = st.container(horizontal=True, vertical_alignment="bottom")
            holdout = row.number_input(
                "Held-out share",
                0.0,
                0.5,
                HOLDOUT,
                step=0.05,
                key="holdout",
                width=160,
                help="Share of the documents that the ranking does not see: coverage is checked on them.",
            )
            count = row.button("Count", type="primary", key="count", disabled=not uploads, icon=":material/play_arrow:")
            slot = row.empty()
            if count:
                slot.button("Cancel", key="cancel", icon=":material/stop:")
                files = [CorpusFile(upload.name, upload.getvalue()) for upload in uploads]
                _count(files, workspace, holdout)
        with right:
            saved = st.file_uploader("Counts saved before (.npz)", type=["npz"], key="saved_counts")
            if st.button("Load", key="load", disabled=saved is None, icon=":material/folder_open:") and saved:
                try:
                    _load(saved.name, saved.getvalue(), workspace)
                except VocabTrimError as error:
                    show_error(error)
        for message in st.session_state.pop("_problems", []):
            show_error(message)


def _count(files: list[CorpusFile], workspace: Workspace, holdout: float) -> None:
    """Count each file as a corpus of its own, unless the same content was counted before in the same way."""
    if sum(len(file.data) for file in files) > MAX_FILE_BYTES:
        show_error(f"These files have more than {MAX_FILE_BYTES >> 20} MiB together. Count some of them at a time.")
        return
    problems, bar = [], st.progress(0.0)
    for number, file in enumerate(files):
        key = f"{file.sha256[:12]}-{workspace.tokenizer.fingerprint[:8]}-{holdout:g}"

        def report(share: float, message: str, done: int = number) -> None:
            bar.progress(min(1.0, (done + share) / len(files)), plain(message))

        try:
            if key not in own_corpora():
                _keep(key, counted([file], workspace.tokenizer, holdout, file.name, report))
            choose_corpus(key)
        except VocabTrimError as error:
            problems.append(str(error))
    st.session_state["_problems"] = problems
    # The new corpus shows from the next run on.
    st.rerun()


def _load(name: str, data: bytes, workspace: Workspace) -> None:
    counts = TokenCounts.from_bytes(data, name)
    if counts.tokenizer_fingerprint != workspace.tokenizer.fingerprint:
        raise TokenizerError(
            f"{name} was counted with another tokenizer ({counts.tokenizer_name}) than the target's "
            f"({workspace.tokenizer.name}). Choose that target in the sidebar, or count the text again."
        )
    key = counts.digest[:20]
    _keep(key, Corpus(name.removesuffix(".npz"), counts))
    choose_corpus(key)
    st.rerun()


def _keep(key: str, corpus: Corpus) -> None:
    own = own_corpora()
    if len(own) >= MAX_CORPORA:
        raise CorpusError(f"This session holds {MAX_CORPORA} corpora already. Remove one first.")
    own[key] = corpus


def _cards(workspace: Workspace) -> None:
    st.subheader("Corpora", anchor=False)
    columns = st.columns(3)
    for number, (key, corpus) in enumerate(workspace.corpora.items()):
        with columns[number % 3].container(border=True):
            _card(key, corpus, key == workspace.settings.corpus)
    if len(workspace.corpora) > 1:
        _merging(workspace)


def _card(key: str, corpus: Corpus, in_use: bool) -> None:
    counts = corpus.counts
    rows = {
        "tokens": f"{counts.tokens:,}",
        "different tokens": f"{counts.distinct:,}",
        "documents": f"{counts.documents:,}",
        "held out": f"{counts.held_out.sum() / max(1, counts.tokens):.1%}, {counts.held_out_documents:,} documents",
        "counted": f"{counts.tokens / corpus.seconds:,.0f} tokens/s" if corpus.seconds else "earlier",
    }
    st.html(card(corpus.label, rows))
    if counts.bad_record_count:
        lines = "; ".join(f"{bad.file} line {bad.line}: {bad.reason}" for bad in counts.bad_records[:3])
        more = f" and {counts.bad_record_count - 3:,} more" if counts.bad_record_count > 3 else ""
        st.warning(f"{counts.bad_record_count:,} lines were skipped. {plain(lines)}{more}.", icon=":material/warning:")
    with st.expander("Where it comes from"):
        files = {f"{file.name} ({file.documents:,} documents)": file.sha256 for file in counts.files}
        st.html(card("sha256 of the files", files))
        st.html(card("Tokenizer", {"name": counts.tokenizer_name, "fingerprint": counts.tokenizer_fingerprint}))
    buttons = st.container(horizontal=True)
    label = "In use" if in_use else "Use"
    buttons.button(label, key=f"use-{key}", disabled=in_use, on_click=choose_corpus, args=(key,))
    name = f"{corpus.label.replace(' ', '-')}.npz"
    buttons.download_button("Counts", corpus.counts.to_bytes, name, key=f"save-{key}", icon=":material/download:")
    if key not in (SHIPPED, SAMPLE):
        buttons.button("Remove", key=f"remove-{key}", on_click=_remove, args=(key,))


def _remove(key: str) -> None:
    own_corpora().pop(key, None)


def _merging(workspace: Workspace) -> None:
    row = st.container(horizontal=True, vertical_alignment="bottom")
    chosen = row.multiselect(
        "Merge corpora into one",
        list(workspace.corpora),
        format_func=lambda key: workspace.corpora[key].label,
        key="merge_these",
        width=520,
    )
    if row.button("Merge", key="merge", disabled=len(chosen) < 2, icon=":material/merge:"):
        parts = [workspace.corpora[key] for key in chosen]
        try:
            counts = reduce(TokenCounts.merge, [part.counts for part in parts])
            key = counts.digest[:20]
            _keep(key, Corpus(" + ".join(part.label for part in parts), counts))
        except VocabTrimError as error:
            show_error(error)
            return
        choose_corpus(key)
        st.rerun()


def _frequencies(workspace: Workspace) -> None:
    counts = workspace.corpus.counts
    frequencies, fit = rank_frequency(counts.total), fit_zipf(counts.total)
    if not len(frequencies):
        return
    st.subheader("How often the tokens occur", anchor=False)
    st.plotly_chart(charts.zipf(frequencies, fit, workspace.k), alt="Token counts against rank, log axes")
    if fit:
        quality = "a good summary" if fit.distance < 0.1 else "a rough summary"
        st.caption(
            f"The dashed line is Zipf's law fitted to ranks 1 to {fit.high:,} (tokens counted at least ten times) by "
            f"maximum likelihood. It is {quality}: the cumulative shares differ by at most {fit.distance:.1%}."
        )
    order = np.argsort(-counts.total, kind="stable")[: counts.distinct]
    left, right = st.columns(2, gap="large")
    for column, title, ids in (
        (left, "Most frequent tokens", order[:CHIPS]),
        (right, "Rarest tokens that occur", order[-CHIPS:][::-1]),
    ):
        with column:
            st.subheader(title, anchor=False)
            notes = [f"{counts.total[token]:,} times, {counts.total[token] / counts.tokens:.3%}" for token in ids]
            st.html(tokens.list_chips(workspace.tokenizer, ids.tolist(), notes))
    st.caption("A dot is a space, ↵ a line break; bytes that are not a whole character are shown in hex, as ⟨E2 96⟩.")


main()
