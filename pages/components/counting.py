"""Making corpora on the page Calibrate: counting, text written by a model, and files that others made."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Literal

import streamlit as st

from pages.components import visitor
from pages.components.progress import timed_progress
from pages.components.ranking import is_awaited, use_list
from pages.components.resources import Corpus, counted, machine_to_itself, pair_of
from pages.components.state import Workspace, choose_corpus, own_corpora, own_lists
from pages.components.text import short_name
from vocabtrim_core.corpora import CorpusFile, LeftOut, ReadingOptions, Source, plan_shards
from vocabtrim_core.embedded import cache_root
from vocabtrim_core.errors import CorpusError
from vocabtrim_core.generated import AnswerSettings, author, count_answers, model_fingerprint, write_answers
from vocabtrim_core.importing import import_tokens
from vocabtrim_core.progress import Progress
from vocabtrim_core.prompts import Prompt, read_prompts
from vocabtrim_core.shipped import sample_corpus_path
from vocabtrim_core.vocabulary import Ranking

MAX_CORPORA = 30


def count(
    sources: Sequence[Source],
    label: str,
    workspace: Workspace,
    options: ReadingOptions,
    holdout: float,
    report: Progress,
    keep_parts: bool = False,
) -> None:
    """Count a corpus, unless the same content was counted before in the same way, and choose it.

    With `keep_parts` the parts that are finished are kept, so that a cancelled count goes on where it was.
    """
    left_out: list[LeftOut] = []
    report(0.0, f"{label}: looking for files")
    shards = plan_shards(sources, options, on_left_out=left_out.append)
    identity = [workspace.tokenizer.fingerprint, holdout, astuple(options), *(shard.key for shard in shards)]
    made_from = hashlib.sha256(repr(identity).encode()).hexdigest()
    # What was missing from one may be there now.
    whole = {key: one for key, one in own_corpora().items() if not any(each.serious for each in one.counts.left_out)}
    key = next((key for key, one in whole.items() if one.made_from == made_from), None)
    if key is not None and whole[key].label != short_name(label):
        note = f"{label} has the same content as {whole[key].label}, which is now in use."
        st.session_state["_notes"] = (*st.session_state.get("_notes", ()), note)
    if key is None:
        folder = cache_root() / "counting" if keep_parts else None
        key = keep(counted(shards, workspace.tokenizer, options, holdout, label, report, folder, left_out, made_from))
    choose_corpus(key)


def write(
    workspace: Workspace,
    by: Literal["target", "drafter"],
    own_prompts: CorpusFile | None,
    limit: int,
    holdout: float,
    report: Progress,
) -> None:
    """Let a model of the pair answer prompts, count the answers, and choose them.

    The sampling is that of the sidebar. Answers are kept in the user's cache folder: none is written twice, and a
    cancelled run goes on where it was.
    """
    settings = workspace.settings
    asked = AnswerSettings(1, settings.max_new_tokens, settings.generation.sampling)
    prompts = _prompts(own_prompts, limit)
    pair = pair_of(settings.target, settings.drafter, settings.dtype)
    model = author(pair, by)
    digest = hashlib.sha256(repr((model_fingerprint(model), pair.tokenizer.fingerprint, asked)).encode()).hexdigest()
    path = cache_root() / "generated" / f"{by}-{digest[:16]}.jsonl"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CorpusError(f"{path.parent} cannot be made: {error.strerror}.") from None
    with machine_to_itself():
        written = write_answers(model, pair.tokenizer, prompts, asked, path, on_progress=report)
    counts = count_answers(written.answers, pair.tokenizer, holdout, path.name)
    seconds = written.seconds if written.added == len(written.answers) else None
    notes = (f"{len(written.answers):,} answers of the {by}, {written.added:,} of them written now; kept in {path}.",)
    choose_corpus(keep(Corpus(f"Written by the {by} ({len(written.answers):,} answers)", counts, seconds, notes)))


def _prompts(own: CorpusFile | None, limit: int) -> list[Prompt]:
    """The first prompts of an upload, or those of the sample chats."""
    if own is None:
        return read_prompts(sample_corpus_path(), limit)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompts.jsonl"
        path.write_bytes(own.data)
        try:
            return read_prompts(path, limit)
        except CorpusError as error:
            raise CorpusError(str(error).replace(str(path), own.name)) from None


def load(file: CorpusFile, workspace: Workspace) -> tuple[str, ...]:
    """Take counts or a list from a file that this program or another made; what there is to say about it."""
    imported = import_tokens(file, workspace.tokenizer)
    if isinstance(imported.content, Ranking):
        key = f"list-{imported.content.digest[:16]}"
        own_lists()[key] = imported.content
        visitor.keep(key, imported.content)
        use_list(key)
        return (f"{file.name} is a list without counts. The sidebar now ranks by it.", *imported.notes)
    key = keep(Corpus(file.name.rpartition(".")[0], imported.content, None, imported.notes))
    if not is_awaited(key):
        choose_corpus(key)
    return imported.notes


def keep(corpus: Corpus) -> str:
    """Add to the session's corpora, and keep it for this browser; its key. CorpusError where there are too many.

    The key is of the content, so that a link names the same corpus wherever its counts file is loaded.
    """
    own, key = own_corpora(), corpus.counts.digest[:20]
    if key in own:
        return key
    if len(own) >= MAX_CORPORA:
        raise CorpusError(f"This session holds {MAX_CORPORA} corpora already. Remove one first.")
    own[key] = replace(corpus, label=short_name(corpus.label))
    visitor.keep(key, own[key])
    return key


def progress() -> Progress:
    """A bar that shows what is being done. A click on anything reruns the page at its next step, and so cancels."""
    return timed_progress("Starting")
