"""Counting text: what it looks like in tokens."""

from __future__ import annotations

from functools import reduce
from typing import Literal

import numpy as np
import pandas as pd
import streamlit as st

from pages.components import charts, counting, ranking, tokens, visitor
from pages.components.downloads import counts_file, download
from pages.components.progress import cancel_button
from pages.components.resources import Corpus, fits_of
from pages.components.settings import SHIPPED, mixture
from pages.components.state import (
    CALIBRATE,
    Workspace,
    choose_corpus,
    mix_corpus,
    own_corpora,
    page_setup,
    ready,
)
from pages.components.tables import table
from pages.components.text import answer, card, errors_shown, plain, show_error
from vocabtrim_core import defaults, importing
from vocabtrim_core.corpora import KINDS, MAX_FILE_BYTES, SUFFIXES, CorpusFile, ReadingOptions
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.counting.ledger import sentences, together
from vocabtrim_core.errors import VocabTrimError
from vocabtrim_core.shipped import sample_corpora
from vocabtrim_core.zipf import rank_frequency, rarest_share

CHIPS = 48
ROLES: dict[Literal["all", "assistant"], str] = {"all": "all turns", "assistant": "the assistant's turns"}
NEWLINES: dict[Literal["lf", "keep"], str] = {"lf": "all as LF", "keep": "as they are"}
WRITERS: tuple[Literal["target", "drafter"], ...] = ("target", "drafter")
RAREST = 0.75  # FR-Spec's statement is about this share of the vocabulary.
GOOD_FIT = 0.1
MAX_PROMPTS = 2_000


def main() -> None:
    workspace = ready(page_setup(CALIBRATE))
    with errors_shown():
        _sentence(workspace)
        _sources(workspace)
        _cards(workspace)
        _frequencies(workspace)
        _chips(workspace)


def _sentence(workspace: Workspace) -> None:
    counts = workspace.corpus.counts
    frequencies = rank_frequency(counts.total)
    fit, _ = fits_of(counts.digest, counts)
    if not len(frequencies):
        answer("{corpus} has no tokens.", corpus=workspace.corpus.label)
        return
    top = min(1000, max(1, len(frequencies) // 10))
    template = (
        "{corpus} has {tokens} tokens, {distinct} different ones ({used} of the vocabulary). "
        + ("The {n} most frequent make up" if top > 1 else "The most frequent makes up")
        + " {share} of the text"
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
    with st.expander("Add text", expanded=True, icon=":material/upload_file:"):
        files, places, written, loaded = st.tabs(
            ["Upload files", "Folder, path or data set", "Let a model write it", "Counts and lists of others"]
        )
        with files:
            _uploads(workspace)
        with places:
            _places(workspace)
        with written:
            _written(workspace)
        with loaded:
            _loaded(workspace)
        for message in st.session_state.pop("_problems", []):
            show_error(message)
        for message in st.session_state.pop("_notes", []):
            st.info(plain(message), icon=":material/info:")


def _uploads(workspace: Workspace) -> None:
    uploads = st.file_uploader(
        "Text, code, chats or tables, plain, .gz, .zst, .bz2 or .xz; several files at once",
        type=[suffix.removeprefix(".") for suffix in SUFFIXES],
        accept_multiple_files=True,
        key="uploads",
        help=f"{KINDS}. A record has a text field, `messages` (role, content) or ShareGPT's `conversations`.",
    )
    options, holdout = _reading("upload")
    if _start("Count", "count", disabled=not uploads):
        if sum(upload.size for upload in uploads) > MAX_FILE_BYTES:
            show_error(f"These files have more than {MAX_FILE_BYTES >> 20} MiB together. Count some of them at a time.")
            return
        problems, report = [], counting.progress()
        for number, upload in enumerate(uploads):
            file = CorpusFile(upload.name, upload.getvalue())

            def part(share: float, message: str, done: int = number) -> None:
                report((done + share) / len(uploads), message)

            try:
                counting.count([file], file.name, workspace, options, holdout, part)
            except VocabTrimError as error:
                problems.append(str(error))
        _finish(problems)


def _places(workspace: Workspace) -> None:
    place = st.text_input(
        "A file, a folder, a pattern, or a data set of Hugging Face",
        key="place",
        placeholder="/data/logs/**/*.jsonl.zst   or   hf:NAME:SPLIT",
        help="On the machine that runs this app. Everything that is found is one corpus. A data set is streamed: "
        "hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT. A count that is cancelled goes on where it was.",
    ).strip()
    options, holdout = _reading("place")
    if _start("Count", "count_place", disabled=not place):
        try:
            counting.count([place], place, workspace, options, holdout, counting.progress(), keep_parts=True)
        except VocabTrimError as error:
            _finish([str(error)])
        _finish([])


def _reading(where: str) -> tuple[ReadingOptions, float]:
    """How records are read, and how much is held out."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    roles = row.selectbox(
        "Of chats",
        list(ROLES),
        format_func=ROLES.__getitem__,
        key=f"roles-{where}",
        width=190,
        help="Only what the target says is ever drafted.",
    )
    field = row.text_input(
        "Field",
        key=f"field-{where}",
        placeholder="found by itself",
        width=170,
        help="Of a record: `text`; `request.messages` for a field inside a field; `question+answer` for two turns.",
    )
    newlines = row.selectbox(
        "Line ends",
        list(NEWLINES),
        format_func=NEWLINES.__getitem__,
        key=f"newlines-{where}",
        width=140,
        help="CRLF is another token than LF.",
    )
    holdout = row.number_input(
        "Held-out share",
        0.0,
        0.5,
        defaults.HOLDOUT,
        step=0.05,
        key=f"holdout-{where}",
        width=140,
        help="Share of the documents that the ranking does not see: coverage is checked on them.",
    )
    return ReadingOptions(field=field.strip() or None, roles=roles, newlines=newlines), holdout


def _written(workspace: Workspace) -> None:
    st.caption(
        "A drafter meets what the target writes, so text that the target wrote is the best calibration (VocabTrim, "
        "section 4). Temperature, seed and length are those of the sidebar; answers are kept, so none is written twice."
    )
    row = st.container(horizontal=True, vertical_alignment="bottom")
    by = row.segmented_control("Written by", WRITERS, default="target", key="by", required=True)
    limit = row.number_input(
        "Prompts", 1, MAX_PROMPTS, 32, key="prompts", width=130, help="The first so many of the chosen prompts."
    )
    prompts = st.file_uploader(
        "Prompts of your own (.jsonl with `prompt`, `turns` or `messages`); without, those of the sample chats",
        type=["jsonl"],
        key="prompt_file",
    )
    if _start("Write and count", "write", disabled=False):
        try:
            file = CorpusFile(prompts.name, prompts.getvalue()) if prompts else None
            counting.write(workspace, by, file, int(limit), defaults.HOLDOUT, counting.progress())
        except VocabTrimError as error:
            _finish([str(error)])
        _finish([])


def _loaded(workspace: Workspace) -> None:
    saved = st.file_uploader(
        "Counts saved here (.npz), `token_freq.pt` of speculators, a token map or a draft vocabulary (`d2t`, `t2d`) in "
        ".pt, .npy or .json",
        type=[suffix.removeprefix(".") for suffix in importing.SUFFIXES],
        key="saved_counts",
    )
    if st.button("Load", key="load", disabled=saved is None, icon=":material/folder_open:") and saved:
        try:
            st.session_state["_notes"] = counting.load(CorpusFile(saved.name, saved.getvalue()), workspace)
        except VocabTrimError as error:
            _finish([str(error)])
        _finish([])


def _start(label: str, key: str, disabled: bool) -> bool:
    """A button that starts something, and while that runs one that cancels it: any click does."""
    row = st.container(horizontal=True, vertical_alignment="bottom")
    started = row.button(label, type="primary", key=key, disabled=disabled, icon=":material/play_arrow:")
    if started:
        cancel_button(row, f"cancel_{key}")
    return started


def _finish(problems: list[str]) -> None:
    """Show what is new: in the next run."""
    st.session_state["_problems"] = problems
    st.rerun()


def _cards(workspace: Workspace) -> None:
    st.subheader("Corpora", anchor=False)
    corpora = list(workspace.corpora.items())
    for first in range(0, len(corpora), 3):
        for column, (key, corpus) in zip(st.columns(3), corpora[first : first + 3], strict=False):
            with column.container(border=True, height="stretch"):
                _card(key, corpus, workspace)
    if own_corpora():
        st.caption(visitor.promise())
    if len(corpora) > 1:
        _merging(workspace)


def _card(key: str, corpus: Corpus, workspace: Workspace) -> None:
    counts, weights = corpus.counts, mixture(workspace.settings.corpus)
    rows = {
        "tokens": f"{counts.tokens:,}",
        "different tokens": f"{counts.distinct:,}",
        "documents": f"{counts.documents:,}",
        "held out": f"{counts.held_out.sum() / max(1, counts.tokens):.1%}, {counts.held_out_documents:,} documents",
        "counted": f"{counts.tokens / corpus.seconds:,.0f} tokens/s" if corpus.seconds else "earlier",
    }
    st.html(card(corpus.label, rows))
    if counts.bad_record_count:
        lines = "; ".join(_bad(bad.file, bad.line, bad.reason) for bad in counts.bad_records[:3])
        more = f" and {counts.bad_record_count - 3:,} more" if counts.bad_record_count > 3 else ""
        st.warning(f"{counts.bad_record_count:,} lines were skipped. {plain(lines)}{more}.", icon=":material/warning:")
    if counts.left_out:
        shown = "; ".join(each.sentence if each.serious else each.reason for each in counts.left_out[:3])
        more = f" And {counts.left_out_count - 3:,} more." if counts.left_out_count > 3 else ""
        serious = counts.left_out[0].serious
        (st.error if serious else st.info)(
            f"Left out, whole or in part: {plain(shown)}{more}", icon=":material/warning:" if serious else None
        )
    for note in (*sentences(together(counts.ledger)), *corpus.notes):
        st.caption(plain(note))
    with st.expander("Where it comes from"):
        files = {f"{file.name} ({file.documents:,} documents)": file.sha256 for file in counts.files[:20]}
        st.html(card("sha256 of the files", files))
        if len(counts.files) > len(files):
            st.caption(f"and {len(counts.files) - len(files):,} files more")
        st.html(card("Tokenizer", {"name": counts.tokenizer_name, "fingerprint": counts.tokenizer_fingerprint}))
    buttons = st.container(horizontal=True)
    alone = list(weights) == [key]
    label = "In use" if alone else "Use alone" if key in weights else "Use"
    buttons.button(label, key=f"use-{key}", disabled=alone, on_click=choose_corpus, args=(key,))
    if key not in weights:
        buttons.button("Mix in", key=f"mix-{key}", on_click=mix_corpus, args=(key, weights), icon=":material/add:")
    name = f"{corpus.label.replace(' ', '-')}.npz"
    download(buttons, "Counts", counts_file(counts.digest, counts), name, f"save-{key}")
    if key not in (SHIPPED, *sample_corpora()):
        buttons.button("Remove", key=f"remove-{key}", on_click=_remove, args=(key,))


def _bad(file: str, line: int, reason: str) -> str:
    return f"{file} line {line}: {reason}" if line else f"{file}: {reason}"


def _remove(key: str) -> None:
    own_corpora().pop(key, None)
    visitor.forget(key)
    ranking.leave_out(key)


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
            key = counting.keep(Corpus(" + ".join(part.label for part in parts), counts))
        except VocabTrimError as error:
            show_error(error)
            return
        choose_corpus(key)
        st.rerun()


def _frequencies(workspace: Workspace) -> None:
    st.subheader("How often the tokens occur", anchor=False)
    state, corpus = st.session_state, workspace.corpus
    others = {key: one for key, one in workspace.corpora.items() if one is not corpus}
    room = len(charts.LINES) - 1
    # One's own text first: the samples only fill what room there is.
    first = sorted(others, key=lambda key: key not in own_corpora())
    state["compared"] = [key for key in state.get("compared", first) if key in others][:room]
    chosen = st.multiselect(
        "Compare with",
        list(others),
        format_func=lambda key: others[key].label,
        key="compared",
        max_selections=room,
        help=f"At most {room}, so that the lines can be told apart.",
    )
    shown = [corpus, *(others[key] for key in chosen)]
    if len(others) > len(chosen):
        st.caption(
            f"Not in the chart: {plain(', '.join(one.label for key, one in others.items() if key not in chosen))}."
        )
    shown = [one for one in shown if one.counts.tokens]
    if corpus not in shown:
        return
    fits = {}
    for name, fit in zip(("Zipf", "Zipf-Mandelbrot"), fits_of(corpus.counts.digest, corpus.counts), strict=True):
        if fit:
            fits[f"{name}, exponent {fit.exponent:.2f}"] = fit
    frequencies: dict[str, np.ndarray] = {}
    for one in shown:
        # Two corpora may have the same name.
        name = one.label if one.label not in frequencies else f"{one.label} ({len(frequencies) + 1})"
        frequencies[name] = rank_frequency(one.counts.total)
    st.plotly_chart(
        charts.zipf(frequencies, fits, corpus.label, workspace.k), alt="Share of the text against rank, log axes"
    )
    rows = []
    for name, one in zip(frequencies, shown, strict=True):
        zipf, mandelbrot = fits_of(one.counts.digest, one.counts)
        row = {"corpus": name, "tokens": f"{one.counts.tokens:,}", "different": f"{one.counts.distinct:,}"}
        row["Zipf exponent (gap)"] = f"{zipf.exponent:.2f} ({zipf.distance:.1%})" if zipf else "too little text"
        law = "does not fit" if zipf else ""
        if mandelbrot:
            law = f"{mandelbrot.exponent:.2f}, {mandelbrot.offset:.1f} ({mandelbrot.distance:.1%})"
        row["Mandelbrot exponent, offset (gap)"] = law
        row[f"rarest {RAREST:.0%} of the vocabulary"] = f"{rarest_share(one.counts.total, RAREST):.2%} of the text"
        row[f"rarest {RAREST:.0%} of those that occur"] = f"{rarest_share(frequencies[name], RAREST):.1%} of the text"
        rows.append(row)
    st.html(table(pd.DataFrame(rows)))
    rarest = rarest_share(corpus.counts.total, RAREST)
    of_observed = rarest_share(rank_frequency(corpus.counts.total), RAREST)
    said = (
        f"In {plain(corpus.label)}, {RAREST:.0%} of the vocabulary make up {rarest:.2%} of the text (FR-Spec found "
        f"about 5% for its corpus); {corpus.counts.distinct:,} of the {corpus.counts.vocab_size:,} tokens occur at "
        f"all. Of those, the rarest {RAREST:.0%} make up {of_observed:.1%} and the most frequent {1 - RAREST:.0%} the "
        f"other {1 - of_observed:.1%}."
    )
    zipf, mandelbrot = fits_of(corpus.counts.digest, corpus.counts)
    if zipf:
        quality = "a good summary" if zipf.distance < GOOD_FIT else "a rough summary"
        said += (
            f" The laws are fitted to ranks 1 to {zipf.high:,} (tokens counted at least ten times) by maximum "
            f"likelihood. Zipf's is {quality}: the cumulative shares differ by at most {zipf.distance:.1%} (the gap)."
        )
        if not mandelbrot:
            said += " Zipf-Mandelbrot does not fit: rare tokens fall off faster than any power of the rank."
    st.caption(said)


def _chips(workspace: Workspace) -> None:
    counts = workspace.corpus.counts
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
