"""What is slow to make and the same for everybody: tokenizers, counts, rankings, models, timings. Kept once a process.

Keys are content (digests), never file names.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import streamlit as st
import torch

from vocabtrim_core.corpora import CorpusFile, read_file
from vocabtrim_core.counting import Progress, TokenCounts, count_files
from vocabtrim_core.embedded import embedded_target_folder
from vocabtrim_core.evaluation.latency import HeadTiming, time_head
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.hub import model_folder
from vocabtrim_core.models import EMBEDDED, ModelPair, load_pair
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer
from vocabtrim_core.vocabulary import Ranking, forced_token_ids, rank_tokens
from vocabtrim_core.zipf import coverage_curve

DATA = Path(__file__).resolve().parents[2] / "data"
SAMPLE = DATA / "corpora" / "chat.jsonl"
HOLDOUT = 0.1


@dataclass(frozen=True, eq=False)
class Corpus:
    """Counts with what a page shows of them. `seconds` is what counting took, None where it was done elsewhere."""

    label: str
    counts: TokenCounts
    seconds: float | None = None


@st.cache_resource(max_entries=8, show_spinner="Loading the tokenizer")
def tokenizer_of(target: str) -> Tokenizer:
    """The tokenizer of the target, which has been fetched where it is the embedded one."""
    source = embedded_target_folder() if target == EMBEDDED else target
    return load_tokenizer(model_folder(source, weights=False))


@st.cache_resource(max_entries=8, show_spinner=False)
def shipped_corpus(fingerprint: str) -> Corpus | None:
    """The counts shipped for the tokenizer with this fingerprint, if there are any."""
    for path in sorted((DATA / "rankings").glob("*.npz")):
        counts = TokenCounts.load(path)
        if counts.tokenizer_fingerprint == fingerprint:
            return Corpus("Shipped counts", counts)
    return None


@st.cache_resource(max_entries=8, show_spinner="Counting the sample chats")
def sample_corpus(fingerprint: str, _tokenizer: Tokenizer) -> Corpus:
    """The sample chats, counted with this tokenizer; their plain text where it has no chat template."""
    file = read_file(SAMPLE)
    if not _tokenizer.has_chat_template:
        file = CorpusFile(file.name, _contents(file.data))
    return counted([file], _tokenizer, HOLDOUT, "Sample chats")


def counted(
    files: list[CorpusFile], tokenizer: Tokenizer, holdout: float, label: str, on_progress: Progress | None = None
) -> Corpus:
    """Count, and take the time."""
    began = time.perf_counter()
    counts = count_files(files, tokenizer, holdout, on_progress)
    return Corpus(label, counts, time.perf_counter() - began)


@st.cache_resource(max_entries=16, show_spinner=False)
def ranking_of(counts_digest: str, forced: tuple[int, ...], usable: int, _counts: TokenCounts, _name: str) -> Ranking:
    """All usable tokens by their calibration counts, forced ones first."""
    return rank_tokens(_counts.calibration, forced, _name, usable)


@st.cache_resource(max_entries=32, show_spinner=False)
def coverage_of(
    ranking_digest: str, counts_digest: str, side: str, _ranking: Ranking, _counts: TokenCounts
) -> np.ndarray:
    """float64[V]: coverage at every k, of the `side` ("calibration" or "held_out") of the counts."""
    return coverage_curve(_ranking.ids, getattr(_counts, side))


@st.cache_resource(max_entries=2, show_spinner="Loading the models (some seconds, once)")
def pair_of(target: str, drafter: str, dtype: str) -> ModelPair:
    """The model pair, ready to decode."""
    return load_pair(target, drafter, dtype)


def pair_ranking(pair: ModelPair, corpus: Corpus) -> Ranking:
    """The ranking of the ids that target, drafter and tokenizer all have; ends of text of the models forced too."""
    forced = forced_token_ids(pair.tokenizer, pair.target.eos_ids)
    counts = corpus.counts
    return ranking_of(counts.digest, tuple(forced.tolist()), pair.usable_vocab_size, counts, corpus.label)


@st.cache_resource(max_entries=4, show_spinner="Ordering the rows of the head")
def ranked_head_of(
    pair_key: tuple[str, str, str], ranking_digest: str, _pair: ModelPair, _ranking: Ranking
) -> RankedHead:
    """The drafter's head with its rows in the order of the ranking."""
    return _pair.drafter.head.reordered(torch.from_numpy(_ranking.ids))


def timed_sizes(vocab_size: int) -> list[int]:
    """The k at which the head is timed: nine, evenly spaced on a log axis up to the whole vocabulary."""
    return np.unique(np.geomspace(min(256, vocab_size), vocab_size, 9).round().astype(int)).tolist()


def head_timings(key: tuple[str, ...], head: RankedHead, again: bool) -> list[HeadTiming]:
    """The head's time at `timed_sizes`: measured once for a `key`, and `again` on request, on a machine to itself."""
    kept = _timings()
    # Looked up without the lock: moving k must not wait for another session's run.
    if again or key not in kept:
        with machine_to_itself(), st.spinner("Timing the head at several k (some seconds, once)"):
            kept[key] = time_head(head, timed_sizes(head.vocab_size))
    return kept[key]


@st.cache_resource
def _timings() -> dict[tuple[str, ...], list[HeadTiming]]:
    return {}


@st.cache_resource
def _timing_lock() -> threading.Lock:
    return threading.Lock()


@contextmanager
def machine_to_itself() -> Iterator[None]:
    """Hold this process's one lock for timing: two sessions that time at once would slow each other down."""
    lock, notice = _timing_lock(), st.empty()
    while not lock.acquire(timeout=0.5):
        notice.info("Another session is timing on this machine. Yours starts when it has finished.")
    try:
        notice.empty()
        yield
    finally:
        lock.release()


def _contents(jsonl: bytes) -> bytes:
    """The messages of each chat as one text, for a tokenizer that cannot render chats."""
    chats = [json.loads(line)["messages"] for line in jsonl.decode().splitlines()]
    texts = ["\n\n".join(message["content"] for message in chat) for chat in chats]
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
