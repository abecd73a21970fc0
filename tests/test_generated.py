"""Answers as a data set: written once, resumed to the same bytes, refused where they are not this run's."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny_models import save_first_layer, save_tiny_llama
from tests.tiny_tokenizer import make_tiny_tokenizer
from vocabtrim_core.cli import main
from vocabtrim_core.corpora import read_documents, read_file
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.decoding.engine import GenerationSettings, generate
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.drafters import lookup
from vocabtrim_core.errors import CorpusError, SettingError, TokenizerError
from vocabtrim_core.generated import (
    Answer,
    AnswerSettings,
    Written,
    author,
    count_answers,
    model_fingerprint,
    read_answers,
    write_answers,
)
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.models import ModelPair
from vocabtrim_core.prompts import Prompt
from vocabtrim_core.sampling import SamplingSettings

ROOT = Path(__file__).parent.parent
PROMPTS = [
    Prompt(text) for text in ("The cat", "A dog sat on the mat.", "Then?", "Who saw the dog, and the cat?", "Mat")
]
SETTINGS = AnswerSettings(samples=2, max_new_tokens=12, sampling=SamplingSettings(temperature=1.0, seed=3))

Write = Callable[..., Written]


@pytest.fixture
def write(tiny_pair: ModelPair, tmp_path: Path) -> Write:
    """Writes the target's answers to `PROMPTS` into answers.jsonl, three at a time."""

    def run(
        model: LanguageModel = tiny_pair.target,
        prompts: list[Prompt] = PROMPTS,
        settings: AnswerSettings = SETTINGS,
        path: Path = tmp_path / "answers.jsonl",
        batch_size: int = 3,
        on_progress: Callable[[float, str], None] | None = None,
    ) -> Written:
        return write_answers(model, tiny_pair.tokenizer, prompts, settings, path, batch_size, on_progress)

    return run


@pytest.fixture
def tiny_pair_folders(tmp_path: Path) -> list[str]:
    """The options that name a tiny pair on disk."""
    tokenizer = make_tiny_tokenizer(tmp_path / "target")
    make_tiny_tokenizer(tmp_path / "drafter")
    target = save_tiny_llama(tmp_path / "target", vocab_size=tokenizer.vocab_size)
    save_first_layer(target, tmp_path / "drafter", vocab_size=tokenizer.vocab_size)
    return ["--target", str(tmp_path / "target"), "--drafter", str(tmp_path / "drafter")]


def unexpected(share: float, message: str) -> None:
    raise AssertionError("something was written again")


# ---------------------------------------------------------------------------------------------------------------------
# What is written


def test_data_set(tiny_pair: ModelPair, write: Write, tmp_path: Path) -> None:
    """Bug: a line tells of another prompt, sample or ending than its answer's, or the file is not what is returned."""
    eos_ids = tuple(range(0, 300, 10))
    written = write(model=replace(tiny_pair.target, eos_ids=eos_ids))
    assert list(read_answers(tmp_path / "answers.jsonl")) == list(written.answers)
    assert {(answer.prompt, answer.sample) for answer in written.answers} == {
        (prompt.text, sample) for prompt in PROMPTS for sample in (0, 1)
    }
    for answer in written.answers:
        ended = answer.answer_ids[-1] in eos_ids
        assert answer.finish == ("eos" if ended else "length")
        assert ended or len(answer.answer_ids) == 12
        assert not set(answer.answer_ids[:-1]) & set(eos_ids)
        assert answer.prompt_ids == tuple(tiny_pair.tokenizer.encode_prompt(answer.prompt))
        assert answer.answer == tiny_pair.tokenizer.decode(answer.answer_ids[: -1 if ended else None])
    assert {answer.finish for answer in written.answers} == {"eos", "length"}, "both endings should be seen"
    assert (written.added, written.added_tokens) == (10, sum(len(answer.answer_ids) for answer in written.answers))


def test_greedy_is_the_engines(tiny_pair: ModelPair, write: Write) -> None:
    """Bug: what is counted is not what the target writes on its own."""
    # The engine alone would also write the ids that pad the model's vocabulary.
    rows = torch.arange(tiny_pair.tokenizer.vocab_size)
    target = replace(tiny_pair.target, head=tiny_pair.target.head.reordered(rows))
    stop = StopCondition(frozenset(target.eos_ids))
    for answer in write(model=target, settings=AnswerSettings(max_new_tokens=20)).answers:
        prompt_ids = tiny_pair.tokenizer.encode_prompt(answer.prompt)
        cycles = generate(target, None, prompt_ids, GenerationSettings(max_new_tokens=20), stop)
        assert list(answer.answer_ids) == [token for cycle in cycles for token in cycle.emitted_ids]


def test_chance_is_the_answers_own(write: Write, tmp_path: Path) -> None:
    """Bug: an answer changes with the batch size or with the prompts around it; samples or seeds repeat each other."""
    answers = {answer.key: answer for answer in write().answers}
    other = write(prompts=[*reversed(PROMPTS), Prompt("More")], path=tmp_path / "other.jsonl", batch_size=4).answers
    assert answers == {answer.key: answer for answer in other if answer.prompt != "More"}
    by_sample = [{answer.answer_ids for answer in answers.values() if answer.sample == i} for i in (0, 1)]
    assert not by_sample[0] & by_sample[1]
    seeded = AnswerSettings(2, 12, SamplingSettings(temperature=1.0, seed=4))
    again = write(settings=seeded, path=tmp_path / "seeded.jsonl").answers
    assert all(answer.answer_ids != answers[answer.key].answer_ids for answer in again)


def test_chats_for_corpora(write: Write, tmp_path: Path) -> None:
    """Bug: the data set is not a file of chats for those who read it as one."""
    answers = write().answers
    documents = list(read_documents(read_file(tmp_path / "answers.jsonl"), lambda bad: pytest.fail(str(bad))))
    assert [[message["content"] for message in document.messages or ()] for document in documents] == [
        [answer.prompt, answer.answer] for answer in answers
    ]


def test_equal_prompts(write: Write, tmp_path: Path) -> None:
    """Bug: a prompt that occurs twice is answered twice with the same text, which counts double."""
    assert len(write(prompts=PROMPTS[:2] * 2).answers) == 4
    assert len(list(read_answers(tmp_path / "answers.jsonl"))) == 4


def test_drafter_writes(tiny_pair: ModelPair, write: Write) -> None:
    """Bug: "by the drafter" is written by the target, or goes on where the target would have ended."""
    ends = replace(tiny_pair, target=replace(tiny_pair.target, eos_ids=(2, 7)))
    drafter = author(ends, "drafter")
    assert drafter.eos_ids == (2, 7)
    assert drafter.body is tiny_pair.drafter.model.body
    assert author(ends, "target") is ends.target
    answers = write(model=drafter).answers
    assert all(max(answer.answer_ids) < tiny_pair.tokenizer.vocab_size for answer in answers)


def test_a_head_alone_writes_nothing(tiny_pair: ModelPair) -> None:
    """Bug: an EAGLE drafter or prompt lookup, asked to write, ends in a traceback."""
    with pytest.raises(SettingError, match="writes nothing without its target"):
        author(replace(tiny_pair, drafter=lookup.load(tiny_pair.target)), "drafter")


# ---------------------------------------------------------------------------------------------------------------------
# Written once


def test_nothing_is_written_twice(write: Write, tmp_path: Path) -> None:
    """Bug: a second run answers again, or adds the same lines once more."""
    first = write()
    before = (tmp_path / "answers.jsonl").read_bytes()
    second = write(on_progress=unexpected)
    assert (second.answers, second.added, second.added_tokens) == (first.answers, 0, 0)
    assert (tmp_path / "answers.jsonl").read_bytes() == before


@pytest.mark.parametrize("line, share", [(0, 0.0), (0, 0.001), (1, 0.5), (3, 0.0), (5, 0.9), (9, 0.999)])
def test_resumes_from_any_byte(write: Write, tmp_path: Path, line: int, share: float) -> None:
    """Bug: a run that was killed in the middle of a write leaves a gap, a double or a broken line."""
    path = tmp_path / "answers.jsonl"
    undisturbed = write()
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:line]) + lines[line][: int(share * len(lines[line]))])
    assert write().answers == undisturbed.answers
    assert path.read_bytes() == whole


def test_resumes_after_kill(tmp_path: Path, tiny_pair_folders: list[str]) -> None:
    """Bug: what a killed process leaves is not taken up, or the whole differs from an undisturbed run."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"The cat number {i}"}) + "\n" for i in range(32)))

    def arguments(out: str) -> list[str]:
        options = ["--by", "target", "--out", str(tmp_path / out), "--temperature", "1", "--batch", "1"]
        options += ["--dtype", "float32", "--max-new-tokens", "16"]
        return ["answer", str(prompts), *options, *tiny_pair_folders]

    killed = tmp_path / "killed.jsonl"
    command = [sys.executable, "-m", "vocabtrim_core", *arguments("killed.jsonl")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and not (killed.exists() and killed.stat().st_size):
            time.sleep(0.005)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert 0 < killed.read_bytes().count(b"\n") < 32
    assert main(arguments("killed.jsonl")) == main(arguments("undisturbed.jsonl")) == 0
    assert killed.read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()


def test_stop_and_progress(write: Write, tmp_path: Path) -> None:
    """Bug: Stop loses whole batches or is swallowed; progress runs backwards or does not end at the end."""
    shares: list[float] = []

    class StopError(Exception):
        pass

    def stop(share: float, message: str) -> None:
        shares.append(share)
        if share > 0.5:
            raise StopError

    with pytest.raises(StopError):
        write(on_progress=stop)
    path = tmp_path / "answers.jsonl"
    assert path.read_bytes().count(b"\n") in (3, 6)
    before = path.read_bytes()
    write(on_progress=lambda share, message: shares.append(share))
    assert path.read_bytes().startswith(before)
    assert shares[-1] == 1
    assert all(0 <= share <= 1 for share in shares)
    rest = shares[shares.index(next(share for share in shares if share > 0.5)) + 1 :]
    assert rest == sorted(rest)


def test_more_is_added(write: Write, tmp_path: Path) -> None:
    """Bug: asking for another sample or prompt answers everything again, or drops what is there."""
    path = tmp_path / "answers.jsonl"
    write(settings=replace(SETTINGS, samples=1))
    before = path.read_bytes()
    more = write()
    assert more.added == 5
    assert path.read_bytes().startswith(before)
    assert write(prompts=[*PROMPTS, Prompt("More")]).added == 2
    assert len(write(prompts=PROMPTS[:1]).answers) == 2
    assert len(list(read_answers(path))) == 12


# ---------------------------------------------------------------------------------------------------------------------
# What is refused


@pytest.mark.parametrize(
    "settings, words",
    [
        (AnswerSettings(2, 13, SETTINGS.sampling), "max new tokens is 12, not 13"),
        (AnswerSettings(2, 12, replace(SETTINGS.sampling, temperature=0.5)), "temperature is 1, not 0.5"),
        (AnswerSettings(2, 12, replace(SETTINGS.sampling, seed=4)), "seed is 3, not 4"),
        (AnswerSettings(2, 12, replace(SETTINGS.sampling, top_p=0.5)), "top p is 1, not 0.5"),
    ],
)
def test_other_settings(write: Write, tmp_path: Path, settings: AnswerSettings, words: str) -> None:
    """Bug: text of other settings is taken for this run's, or mixed with it."""
    write()
    before = (tmp_path / "answers.jsonl").read_bytes()
    with pytest.raises(SettingError, match=words):
        write(settings=settings)
    assert (tmp_path / "answers.jsonl").read_bytes() == before


def test_other_model(tiny_pair: ModelPair, write: Write) -> None:
    """Bug: the drafter's text is taken for the target's; a model is known by its name and not by its weights."""
    write()
    with pytest.raises(SettingError, match="another model"):
        write(model=tiny_pair.drafter.model)
    assert write(model=replace(tiny_pair.target, name="moved"), on_progress=unexpected).added == 0


def test_fingerprint(tiny_pair: ModelPair) -> None:
    """Bug: a model that can write other text has the same fingerprint."""
    target = tiny_pair.target
    head = replace(target.head, weight=target.head.weight.clone())
    assert model_fingerprint(replace(target, head=head, name="copy")) == model_fingerprint(target)
    head.weight[3, 5] += 1e-6
    others = [
        replace(target, head=head),
        replace(target, head=replace(target.head, weight=target.head.weight.bfloat16())),
        replace(target, head=replace(target.head, logit_scale=0.5)),
        replace(target, head=replace(target.head, bias=torch.zeros(target.vocab_size))),
        replace(target, eos_ids=(*target.eos_ids, 9)),
        replace(target, max_length=17),
        tiny_pair.drafter.model,
    ]
    assert len({model_fingerprint(model) for model in (target, *others)}) == 1 + len(others)


@pytest.mark.parametrize(
    "content",
    [
        b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
        b'{"messages": []}',
        b"a diary without a line end",
        b"\xff\xfe\n",
        b"[1]\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_foreign_file(write: Write, tmp_path: Path, content: bytes) -> None:
    """Bug: a file that someone else wrote is cut, added to, or ends in a traceback."""
    (tmp_path / "answers.jsonl").write_bytes(content)
    with pytest.raises(CorpusError, match=r"answers.jsonl:1 is not an answer"):
        write(on_progress=unexpected)
    assert (tmp_path / "answers.jsonl").read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        {"answer_ids": [1, "2"]},
        {"answer_ids": [-1]},
        {"answer_ids": [True]},
        {"prompt_ids": None},
        {"finish": "stop"},
        {"temperature": "1"},
        {"seed": None},
        {"messages": [{"role": "user", "content": "\ud83d"}, {"role": "assistant", "content": "b"}]},
    ],
)
def test_damaged_line(write: Write, tmp_path: Path, change: dict) -> None:
    """Bug: a field that was edited by hand shows as a traceback, far from its line."""
    write()
    path = tmp_path / "answers.jsonl"
    lines = path.read_text().splitlines()
    lines[4] = json.dumps({**json.loads(lines[4]), **change})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(CorpusError, match=r"answers.jsonl:5 is not an answer"):
        write(on_progress=unexpected)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: AnswerSettings(samples=0), "samples is 0"),
        (lambda: AnswerSettings(samples=2), "would be the same"),
        (lambda: AnswerSettings(max_new_tokens=0), "new tokens is 0"),
    ],
)
def test_bad_settings(make: Callable[[], AnswerSettings], words: str) -> None:
    """Bug: settings that cannot be met are found after the models have been loaded."""
    with pytest.raises(SettingError, match=words):
        make()


def test_bad_calls(write: Write, tmp_path: Path) -> None:
    """Bug: a prompt that does not fit, or a place that cannot be written to, is found after hours of writing."""
    for options, error, words in [
        ({"prompts": []}, SettingError, "no prompts"),
        ({"batch_size": 0}, SettingError, "batch size is 0"),
        (
            {"prompts": [*PROMPTS, Prompt("word " * 600, "prompts.jsonl:6")]},
            SettingError,
            "prompts.jsonl:6: The prompt",
        ),
        ({"path": tmp_path}, CorpusError, "cannot be written"),
        ({"path": tmp_path / "no" / "answers.jsonl"}, CorpusError, "cannot be written"),
    ]:
        with pytest.raises(error, match=words):
            write(**options, on_progress=unexpected)


def test_missing_file(tmp_path: Path) -> None:
    """Bug: a missing data set reads as an empty one."""
    with pytest.raises(CorpusError, match="cannot be read"):
        list(read_answers(tmp_path / "missing.jsonl"))


# ---------------------------------------------------------------------------------------------------------------------
# Counts


def test_counts(tiny_pair: ModelPair, write: Write, tmp_path: Path) -> None:
    """Bug: prompts are counted too, text is tokenized anew, or answers to one prompt are on both sides."""
    answers = write(settings=replace(SETTINGS, samples=6)).answers
    counts = count_answers(answers, tiny_pair.tokenizer, 0.5, "answers.jsonl")
    expected = np.bincount(
        [token for answer in answers for token in answer.answer_ids], minlength=tiny_pair.tokenizer.vocab_size
    )
    assert (counts.total == expected).all()
    assert counts.documents == 30
    assert 0 < counts.held_out_documents < 30 and counts.held_out_documents % 6 == 0
    assert counts.files[0].sha256 == hashlib.sha256((tmp_path / "answers.jsonl").read_bytes()).hexdigest()
    counts.save(tmp_path / "counts.npz")
    assert TokenCounts.load(tmp_path / "counts.npz").digest == counts.digest
    assert count_answers(answers[::-1], tiny_pair.tokenizer, 0.5, "a").merge(counts).tokens == 2 * counts.tokens


def test_counts_refuse(tiny_pair: ModelPair, write: Write) -> None:
    """Bug: ids of one tokenizer are counted as another's, or an id beyond the vocabulary ends in a traceback."""
    answer = write().answers[0]
    foreign: Answer = replace(answer, origin=replace(answer.origin, tokenizer_fingerprint="other"))
    beyond = replace(answer, answer_ids=(tiny_pair.tokenizer.vocab_size,))
    for answers, holdout, error in [
        ([foreign], 0.1, TokenizerError),
        ([beyond], 0.1, CorpusError),
        ([], 0.1, CorpusError),
        ([answer], 1.0, SettingError),
    ]:
        with pytest.raises(error):
            count_answers(answers, tiny_pair.tokenizer, holdout, "answers.jsonl")
