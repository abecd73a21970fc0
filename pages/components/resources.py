"""What is slow to make and the same for everybody: tokenizers, counts, rankings, models, timings. Kept once a process.

Keys are content (digests), never file names.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import streamlit as st
import torch
import transformers

from pages.components.progress import cancel_button, timed_progress
from vocabtrim_core import defaults
from vocabtrim_core.categories import token_categories
from vocabtrim_core.corpora import CorpusFile, LeftOut, ReadingOptions, Shard, read_file
from vocabtrim_core.counting import TokenCounts, count_files, run_count
from vocabtrim_core.coverage import CoverageInterval, DomainMatrix, domain_matrix, mixed_coverage_interval
from vocabtrim_core.embedded import EMBEDDED, embedded_target_folder
from vocabtrim_core.evaluation.bandwidth import Bandwidth, measure_bandwidth
from vocabtrim_core.evaluation.contention import moment, others_since
from vocabtrim_core.evaluation.latency import HeadTiming, time_head
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.mixing import mixed_shares
from vocabtrim_core.model_files import model_folder
from vocabtrim_core.models import ModelPair, load_pair
from vocabtrim_core.number_format import NumberFormat, number_format
from vocabtrim_core.progress import Progress
from vocabtrim_core.shipped import sample_corpora, shipped_counts_path
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer
from vocabtrim_core.vocabulary import Ranking, forced_token_ids, rank_tokens, ranking_among
from vocabtrim_core.zipf import ZipfFit, coverage_curve, fit_zipf, fit_zipf_mandelbrot


@dataclass(frozen=True, eq=False)
class Corpus:
    """Counts with what a page shows of them. `seconds` is what counting took, None where it was done elsewhere;
    `notes` are sentences on how the text was read. `made_from` is a digest of what was counted and how, or empty."""

    label: str
    counts: TokenCounts
    seconds: float | None = None
    notes: tuple[str, ...] = ()
    made_from: str = ""


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a ranking is made of: corpora with their weights, the corpus that they lean on, a list that is used instead
    of counts, and the tokens pinned and banned by hand."""

    corpora: tuple[Corpus, ...]
    weights: tuple[int, ...]
    prior: Corpus | None = None
    order: Ranking | None = None
    pinned: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """The text that the ranking is for."""
        if len(self.corpora) == 1:
            return self.corpora[0].label
        shares = [weight / sum(self.weights) for weight in self.weights]
        return " + ".join(f"{share:.0%} {one.label}" for one, share in zip(self.corpora, shares, strict=True))

    @property
    def name(self) -> str:
        """The ranking's own name."""
        return self.order.name if self.order else self.label

    @property
    def key(self) -> tuple:
        """What the ranking depends on."""
        parts = tuple((one.counts.digest, weight) for one, weight in zip(self.corpora, self.weights, strict=True))
        prior, order = self.prior and self.prior.counts.digest, self.order and self.order.digest
        return parts, prior, order, self.pinned, self.banned, self.name

    def worth(self) -> np.ndarray:
        """int64[V] or float64[V]: what the tokens are ranked by."""
        if self.order:
            worth = np.zeros(self.order.vocab_size, dtype=np.int64)
            worth[self.order.ids[: self.order.observed]] = np.arange(self.order.observed, 0, -1)
            return worth
        if len(self.corpora) == 1 and not self.prior:
            return self.corpora[0].counts.calibration
        counts = [one.counts for one in self.corpora]
        return mixed_shares(counts, self.weights, self.prior.counts if self.prior else None)


@st.cache_resource(max_entries=8, show_spinner="Loading the tokenizer")
def tokenizer_of(target: str) -> Tokenizer:
    """The tokenizer of the target, which has been fetched where it is the embedded one."""
    source = embedded_target_folder() if target == EMBEDDED else target
    return load_tokenizer(model_folder(source, weights=False))


@st.cache_resource(max_entries=8, show_spinner=False)
def shipped_corpus(fingerprint: str) -> Corpus | None:
    """The counts shipped for the tokenizer with this fingerprint, if there are any."""
    counts = TokenCounts.load(shipped_counts_path())
    return Corpus("Shipped counts", counts) if counts.tokenizer_fingerprint == fingerprint else None


@st.cache_resource(max_entries=32, show_spinner="Counting the sample texts")
def sample_corpus(name: str, fingerprint: str, _tokenizer: Tokenizer) -> Corpus:
    """A sample text, counted with this tokenizer; chats as plain text where it has no chat template."""
    file = read_file(sample_corpora()[name])
    if name == "chat" and not _tokenizer.has_chat_template:
        file = CorpusFile(file.name, _contents(file.data))
    began = time.perf_counter()
    counts = count_files([file], _tokenizer, defaults.HOLDOUT)
    label = {"chat": "chats", "chinese": "Chinese"}.get(name, name)
    return Corpus(f"Sample {label}", counts, time.perf_counter() - began)


def counted(
    shards: list[Shard],
    tokenizer: Tokenizer,
    options: ReadingOptions,
    holdout: float,
    label: str,
    on_progress: Progress,
    state_folder: Path | None,
    left_out: Sequence[LeftOut],
    made_from: str,
) -> Corpus:
    """Count, take the time, and note what is to be said about how the text was read."""
    began = time.perf_counter()
    done = run_count(shards, tokenizer, options, holdout, "local", state_folder, on_progress, left_out=left_out)
    seconds = time.perf_counter() - began
    notes = [*sorted({shard.warning for shard in shards if shard.warning}), *done.notes]
    if done.resumed_shards:
        notes.append(f"{done.resumed_shards:,} of {done.shards:,} parts had been counted before.")
    return Corpus(label, done.counts, None if done.resumed_shards else seconds, tuple(notes), made_from)


@st.cache_resource(max_entries=64, show_spinner=False)
def ranking_of(recipe_key: tuple, forced: tuple[int, ...], usable: int, _recipe: Recipe) -> Ranking:
    """All usable tokens by the recipe, forced and pinned ones first, banned ones last. Raises SettingError."""
    return rank_tokens(_recipe.worth(), forced, _recipe.name, usable, pinned=_recipe.pinned, banned=_recipe.banned)


@st.cache_resource(max_entries=64, show_spinner=False)
def coverage_of(
    ranking_digest: str, counts_digest: str, side: str, _ranking: Ranking, _counts: TokenCounts
) -> np.ndarray:
    """float64[V]: coverage at every k, of the `side` ("calibration" or "held_out") of the counts."""
    return coverage_curve(_ranking.ids, getattr(_counts, side))


@st.cache_resource(max_entries=32, show_spinner=False)
def interval_of(
    ranking_digest: str, recipe_key: tuple, ks: tuple[int, ...], _ranking: Ranking, _recipe: Recipe
) -> CoverageInterval:
    """Coverage of the recipe's held-out text at some k, with its bootstrap interval."""
    groups = [one.counts.held_out_groups for one in _recipe.corpora]
    return mixed_coverage_interval(_ranking, groups, _recipe.weights, ks)


@st.cache_resource(max_entries=32, show_spinner="Comparing the corpora")
def matrix_of(key: tuple, k: int, _rankings: Sequence[Ranking], _texts: Mapping[str, np.ndarray]) -> DomainMatrix:
    """Coverage of each text by each ranking; `key` says which they are."""
    return domain_matrix(_rankings, _texts, k)


@st.cache_resource(max_entries=64, show_spinner=False)
def fits_of(counts_digest: str, _counts: TokenCounts) -> tuple[ZipfFit | None, ZipfFit | None]:
    """Zipf's law and that of Zipf and Mandelbrot, fitted to the counts."""
    return fit_zipf(_counts.total), fit_zipf_mandelbrot(_counts.total)


@st.cache_resource(max_entries=4, show_spinner="Sorting the tokens into kinds")
def categories_of(fingerprint: str, _tokenizer: Tokenizer) -> np.ndarray:
    """int8[V]: the `Category` of every token."""
    return token_categories(_tokenizer)


@st.cache_resource(show_spinner="Timing number formats (a second, once on this machine)")
def format_of(asked: str) -> NumberFormat:
    """The number format that was asked for, or what "auto" is on this machine."""
    return number_format(asked)


@st.cache_resource(max_entries=2, show_spinner="Loading the models (some seconds, once)")
def pair_of(target: str, drafter: str, dtype: str) -> ModelPair:
    """The model pair, ready to decode."""
    transformers.utils.logging.disable_progress_bar()  # They would fill the server's log.
    return load_pair(target, drafter, dtype)


def pair_ranking(pair: ModelPair, recipe: Recipe) -> Ranking:
    """The ranking of the ids that the drafter can propose and target and tokenizer have; ends of text forced too."""
    forced = forced_token_ids(pair.tokenizer, pair.target.eos_ids)
    ranking = ranking_of(recipe.key, tuple(forced.tolist()), pair.usable_vocab_size, recipe)
    return ranking if pair.drafter.head is None else ranking_among(ranking, pair.drafter.head.ranking.numpy())


@st.cache_resource(max_entries=4, show_spinner="Ordering the rows of the head")
def ranked_head_of(
    pair_key: tuple[str, str, str], ranking_digest: str, _pair: ModelPair, _ranking: Ranking
) -> RankedHead | None:
    """The drafter's head with its rows in the order of the ranking; None where it has none."""
    head = _pair.drafter.head
    return None if head is None else head.reordered(torch.from_numpy(_ranking.ids))


@st.cache_resource(show_spinner=False)
def measured_bandwidth() -> Bandwidth:
    """How fast this machine reads memory: measured on first use, which is to be with the machine to itself."""
    return measure_bandwidth()


def timed_sizes(vocab_size: int) -> list[int]:
    """The k at which the head is timed: nine, evenly spaced on a log axis up to the whole vocabulary."""
    return np.unique(np.geomspace(min(256, vocab_size), vocab_size, 9).round().astype(int)).tolist()


def head_timings(key: tuple[str, ...], head: RankedHead, again: bool) -> tuple[list[HeadTiming], float | None] | None:
    """The head's time at `timed_sizes`, and how many processors other programs used meanwhile: measured once for a
    `key`, and `again` on request, on a machine to itself. None where the user has cancelled that."""
    kept, state = _timings(), st.session_state
    if key not in kept and state.get("_untimed") == key and not again:
        return None
    # Looked up without the lock: moving k must not wait for another session's run.
    if again or key not in kept:
        place = st.container(horizontal=True, vertical_alignment="center")
        cancel_button(place, "cancel_timing", lambda: state.update(_untimed=key))
        shown = st.empty()
        with machine_to_itself():
            began = moment()
            report = timed_progress("Timing the head at several k", shown)
            timings = time_head(head, timed_sizes(head.vocab_size), on_progress=report)
            kept[key] = timings, others_since(began)
        st.rerun()
    return kept[key]


@st.cache_resource
def _timings() -> dict[tuple[str, ...], tuple[list[HeadTiming], float | None]]:
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
