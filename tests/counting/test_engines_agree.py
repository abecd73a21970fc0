"""A cluster counts what one machine counts: the same histograms for every tokenizer, text, chat and format.

`--ray-corpora N` sets how many random corpora are compared for each tokenizer.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.counting.helpers import same
from tests.counting.random_corpora import write_random_corpora
from tests.npm_tokenizers import npm_tokenizer_folder
from tests.tiny_tokenizer import make_tiny_tokenizer
from vocabtrim_core.corpora import CorpusFile, ReadingOptions, plan_shards
from vocabtrim_core.counting import cluster, count_shards, run_count
from vocabtrim_core.counting.proof import encoding_proof
from vocabtrim_core.counting.shard_counts import Job, count_shard
from vocabtrim_core.embedded import embedded_target_folder
from vocabtrim_core.errors import TokenizerError
from vocabtrim_core.fast_tokenization import Encoders
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer

SMALL = ("tiny", "without a template", "embedded")
# A worker takes seconds to unpack a large vocabulary, so each of those is tried with one choice of roles.
CASES = [*((name, roles) for name in SMALL for roles in ("all", "assistant"))]
CASES += [("gemma3", "all"), ("llama3_1", "all"), ("qwen3", "assistant")]
LITERAL = "The token <|im_start|> begins a turn."


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def cluster_of_two() -> Iterator[None]:
    """A cluster of two workers on this machine, for all counts of this module."""
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "usable_cores", lambda: 2)
        with cluster._connected(None):
            yield


def tokenizer_of(name: str, folder: Path) -> Tokenizer:
    match name:
        case "tiny":
            return make_tiny_tokenizer(folder)
        case "without a template":
            return make_tiny_tokenizer(folder, chat_template=None)
        case "embedded":
            return load_tokenizer(embedded_target_folder())
    return load_tokenizer(npm_tokenizer_folder(name))


@pytest.mark.usefixtures("cluster_of_two")
@pytest.mark.parametrize("name, roles", CASES)
def test_random_corpora(name: str, roles, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Bug: what reaches a worker is another tokenizer, encoder or option, and its histograms differ in silence."""
    tokenizer = tokenizer_of(name, tmp_path / "tokenizer")
    number = request.config.getoption("--ray-corpora")
    paths = write_random_corpora(tmp_path / "corpora", tokenizer, number, seed=roles == "all")
    shards = plan_shards(paths)
    options = ReadingOptions(roles=roles)
    job = Job(Encoders(tokenizer), options, 0.3)
    counted = {done.shard.file: done.counts for done in cluster.count_on_ray(shards, job)}
    assert len(counted) == number
    for shard in shards:
        assert counted[shard.file].to_bytes("") == count_shard(shard, job).to_bytes(""), shard.file


@pytest.mark.usefixtures("cluster_of_two")
def test_control_text_is_text_on_a_worker(tiny: Tokenizer) -> None:
    """Bug: the library's pickles forget that control-token text is text, so that a cluster counts control tokens."""
    shards = plan_shards([CorpusFile("a.txt", LITERAL.encode())])
    counts = run_count(shards, tiny, engine="ray").counts
    assert counts.total[list(tiny.control_ids)].sum() == 0 and same(counts, count_shards(shards, tiny))


@pytest.mark.parametrize("name", SMALL)
def test_a_pickled_tokenizer_encodes_alike(name: str, tmp_path: Path) -> None:
    """Bug: a form of the tokenizer loses a setting on its way to another process."""
    job = Job(Encoders(tokenizer_of(name, tmp_path), fast=False), ReadingOptions(), 0.1)
    again = pickle.loads(pickle.dumps(job))  # noqa: S301
    assert encoding_proof(again) == encoding_proof(job)
    tokenizer, copy = job.encoders.tokenizer, again.encoders.tokenizer
    assert copy == tokenizer and copy.template_digest == tokenizer.template_digest
    for form in ("plain", "control"):
        one, other = getattr(copy, form), getattr(tokenizer, form)
        assert one.to_str() == other.to_str() and one.encode_special_tokens == other.encode_special_tokens


def test_the_proof_tells_encodings_apart(tiny: Tokenizer, tmp_path: Path) -> None:
    """Bug: a proof that every tokenizer passes: one whose control text is not text, another template, other roles."""

    def proof(tokenizer: Tokenizer, roles="all") -> str:
        return encoding_proof(Job(Encoders(tokenizer, fast=False), ReadingOptions(roles=roles), 0.1))

    spoiled = make_tiny_tokenizer(tmp_path / "spoiled")
    spoiled.plain.encode_special_tokens = False
    other = make_tiny_tokenizer(tmp_path / "other", chat_template="{{ messages[0]['content'] }}")
    assert len({proof(tiny), proof(tiny, "assistant"), proof(spoiled), proof(other)}) == 4


@pytest.mark.usefixtures("cluster_of_two")
def test_a_worker_that_encodes_differently_does_not_count(tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a worker with another version of a library counts all the same."""
    monkeypatch.setattr(cluster, "encoding_proof", lambda job: "another")
    with pytest.raises(TokenizerError, match="encodes text differently"):
        run_count(plan_shards([CorpusFile("a.txt", b"The cat")]), tiny, engine="ray")
