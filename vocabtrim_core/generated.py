"""Text that a model writes itself, for calibration: answers of the target or of the drafter to a list of prompts.

VocabTrim (arXiv 2506.22694) found that a ranking counted on such text keeps more of the acceptance than one counted on
raw text, and the target's text more than the drafter's. The answers are a JSONL data set, one object a line with the
ids of prompt and answer, the chat as `messages`, and what they came from. It is written once: a run adds the answers
that the file lacks, whatever ended the run before it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from vocabtrim_core import defaults
from vocabtrim_core.counting import CountedFile, Tally, TokenCounts, check_holdout, content_hash
from vocabtrim_core.decoding.batched import decode_batch
from vocabtrim_core.drafters.independent import IndependentModel
from vocabtrim_core.errors import CorpusError, SettingError, TokenizerError
from vocabtrim_core.fast_tokenization import FlatIds
from vocabtrim_core.language_model import LanguageModel, check_ids
from vocabtrim_core.models import ModelPair
from vocabtrim_core.progress import Progress
from vocabtrim_core.prompts import Prompt, is_unicode
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.tokenization import Tokenizer

MAX_ANSWERS = 1_000_000  # of one data set: all of them are in memory

# Of every line, so that a half-written one is known from a foreign file that ends without a line end.
_BEGINNING = b'{"model_fingerprint": "'

# What tells the answers of one origin apart: the prompt's ids and the number of the sample.
Key = tuple[tuple[int, ...], int]


@dataclass(frozen=True)
class AnswerSettings:
    """How answers are written: `samples` of each prompt, each of at most `max_new_tokens`, drawn under `sampling`."""

    samples: int = 1
    max_new_tokens: int = defaults.MAX_NEW_TOKENS
    sampling: SamplingSettings = field(default_factory=SamplingSettings)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise SettingError(f"The number of samples is {self.samples}; ask for at least 1 of each prompt.")
        if self.samples > MAX_ANSWERS:
            raise SettingError(f"The number of samples is {self.samples:,}; ask for at most {MAX_ANSWERS:,}.")
        if self.samples > 1 and self.sampling.greedy:
            raise SettingError(
                f"At temperature 0 all {self.samples} samples of a prompt would be the same. Ask for 1, or raise the "
                "temperature."
            )
        if self.max_new_tokens < 1:
            raise SettingError(f"The number of new tokens is {self.max_new_tokens}; ask for at least 1.")


@dataclass(frozen=True)
class Origin:
    """What decides the answer to a prompt, but for the number of the sample.

    Two origins are equal whatever the names, which are for people.
    """

    model_fingerprint: str
    tokenizer_fingerprint: str
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    model_name: str = field(compare=False)


@dataclass(frozen=True)
class Answer:
    """One answer. `answer_ids` ends with the end token where `finish` is "eos"; the text `answer` is without it."""

    prompt: str
    answer: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    sample: int
    finish: Literal["eos", "length"]
    origin: Origin

    @property
    def key(self) -> Key:
        return self.prompt_ids, self.sample

    def to_line(self) -> str:
        """The answer as a line of the data set, line end included. Equal answers give equal lines."""
        messages = [{"role": "user", "content": self.prompt}, {"role": "assistant", "content": self.answer}]
        record = {
            **asdict(self.origin),
            "sample": self.sample,
            "finish": self.finish,
            "messages": messages,
            "prompt_ids": self.prompt_ids,
            "answer_ids": self.answer_ids,
        }
        return json.dumps(record, ensure_ascii=False) + "\n"

    @classmethod
    def from_line(cls, line: bytes | str) -> Answer:
        """What `to_line` wrote. ValueError where the line is anything else."""
        record: Any = json.loads(line)
        match record:
            case {
                "messages": [{"role": "user", "content": str(prompt)}, {"role": "assistant", "content": str(answer)}],
                "prompt_ids": [*prompt_ids],
                "answer_ids": [*answer_ids],
                "sample": int(sample),
                "finish": ("eos" | "length") as finish,
            } if _are_ids(prompt_ids) and _are_ids(answer_ids) and is_unicode(prompt + answer):
                return cls(prompt, answer, tuple(prompt_ids), tuple(answer_ids), sample, finish, _origin_of(record))
        raise ValueError("a field is missing or of another type")


@dataclass(frozen=True)
class Written:
    """The answers asked for, and how many of them, of how many tokens, this run wrote, in `seconds`."""

    answers: tuple[Answer, ...]
    added: int
    added_tokens: int
    seconds: float


def author(pair: ModelPair, by: Literal["target", "drafter"]) -> LanguageModel:
    """The model of `pair` that is to write. The drafter also stops where the target would.

    SettingError for a drafter that cannot write without its target.
    """
    if by == "target":
        return pair.target
    if not isinstance(pair.drafter, IndependentModel):
        raise SettingError(
            f"The drafter {pair.drafter.name} writes nothing without its target. Have the target write, or choose an "
            "independent drafter."
        )
    model = pair.drafter.model
    return replace(model, eos_ids=tuple(sorted({*pair.target.eos_ids, *model.eos_ids})))


def write_answers(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    settings: AnswerSettings,
    path: str | Path,
    batch_size: int = defaults.BATCH,
    on_progress: Progress | None = None,
) -> Written:
    """The answers of `model` to `prompts`, of which those that the data set at `path` lacks are written and added.

    They are added a batch at a time, and a batch is always made up alike, so that a run that was ended at any moment
    and repeated leaves the same bytes as an undisturbed one. A half-written last line is dropped. More samples, or
    other prompts, may be asked for later; equal prompts are answered once. `on_progress(share, message)` is called
    after each token; what it raises ends the run, and whole batches stay.
    Raises SettingError for no prompts, one that does not fit the model's context, or a data set that another model,
    tokenizer or settings wrote; CorpusError where `path` holds anything else or cannot be written.
    """
    if batch_size < 1:
        raise SettingError(f"The batch size is {batch_size}; write at least 1 answer at a time.")
    path = Path(path)
    tasks = _plan(model, tokenizer, prompts, settings.samples)
    origin = _origin(model, tokenizer, settings)
    written = _resume(path, origin)
    added = sum(task.key not in written for task in tasks)
    report = _Report(len(tasks) - added, len(tasks), settings.max_new_tokens, on_progress)
    began, added_tokens = time.perf_counter(), 0
    for first in range(0, len(tasks), batch_size):
        # Whole, even where a part is there: a row's last bits can depend on the rows beside it.
        batch = tasks[first : first + batch_size]
        lacking = [task.key for task in batch if task.key not in written]
        if lacking:
            answers = _answer(model, tokenizer, batch, origin, settings, report.step)
            new = [answer for answer in answers if answer.key in lacking]
            _append(path, new)
            written |= {answer.key: answer for answer in new}
            added_tokens += sum(len(answer.answer_ids) for answer in new)
            report.finished(len(new))
    return Written(tuple(written[task.key] for task in tasks), added, added_tokens, time.perf_counter() - began)


def read_answers(path: str | Path) -> Iterator[Answer]:
    """The answers of a data set that `write_answers` wrote, in order; a half-written last line is left out.

    Raises CorpusError, with the line, where the file cannot be read or a line is anything else.
    """
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n") and line.startswith(_BEGINNING[: len(line)]):
                    return
                try:
                    yield Answer.from_line(line)
                except (ValueError, RecursionError) as error:
                    raise CorpusError(
                        f"{path}:{number} is not an answer that this program wrote ({error}). Remove the line, or "
                        "choose another file."
                    ) from None
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}.") from None


def count_answers(answers: Iterable[Answer], tokenizer: Tokenizer, holdout: float, name: str) -> TokenCounts:
    """Count the tokens of the answers (not of their prompts), exactly as the model wrote them.

    All answers to one prompt are on the same side, calibration or held-out: they resemble each other. `name` is the
    data set's; its sha256 is that of these answers' lines. Raises TokenizerError for text of another tokenizer,
    CorpusError for no answers, SettingError for a `holdout` outside 0 <= holdout < 1.
    """
    tally = Tally(tokenizer.vocab_size, check_holdout(holdout))
    rows: list[tuple[int, ...]] = []
    prompts: list[int] = []
    digest = hashlib.sha256()
    for answer in answers:
        if answer.origin.tokenizer_fingerprint != tokenizer.fingerprint:
            raise TokenizerError(
                f"The answers in {name} were written with another tokenizer than {tokenizer.name}. Choose the one of "
                f"{answer.origin.model_name}."
            )
        if max(answer.answer_ids, default=0) >= tokenizer.vocab_size:
            raise CorpusError(f"An answer in {name} holds a token that {tokenizer.name} does not define.")
        rows.append(answer.answer_ids)
        prompts.append(content_hash(answer.prompt.encode()))
        digest.update(answer.to_line().encode())
    if not rows:
        raise CorpusError(f"{name} holds no answers.")
    tally.add(FlatIds.of(rows), np.array(prompts, dtype=np.uint64))
    file = CountedFile(name, digest.hexdigest(), len(rows), int(tally.total.sum()))
    return TokenCounts.of(tally, tokenizer, [file])


def model_fingerprint(model: LanguageModel) -> str:
    """sha256 hex digest of what decides `model`'s text: the tensors of body and head, its scaling, end tokens, context.

    The same weights in another dtype are another model here, since they can write other text.
    """
    head = model.head
    plain = (type(model.body).__name__, head.logit_scale, head.soft_cap, model.eos_ids, model.max_length)
    digest = hashlib.sha256(repr(plain).encode())
    body = dict(model.body.named_parameters()) | dict(model.body.named_buffers())
    head_tensors = {"head.weight": head.weight} | ({} if head.bias is None else {"head.bias": head.bias})
    for name, tensor in sorted((body | head_tensors).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class _Task:
    """An answer to be written."""

    prompt: str
    prompt_ids: tuple[int, ...]
    sample: int

    @property
    def key(self) -> Key:
        return self.prompt_ids, self.sample

    def chance(self, seed: int) -> random.Random:
        """The answer's own source of chance."""
        return random.Random(json.dumps([seed, self.sample, self.prompt_ids]))


def _plan(model: LanguageModel, tokenizer: Tokenizer, prompts: Sequence[Prompt], samples: int) -> list[_Task]:
    """All first samples, then all second ones, and so on: asking for more later leaves the earlier batches as they are.

    Prompts of similar length stand together, so that little is padded.
    """
    if not prompts:
        raise SettingError("There are no prompts to answer. Give at least one.")
    texts: dict[tuple[int, ...], str] = {}
    for prompt in prompts:
        ids = tuple(tokenizer.encode_prompt(prompt.text))
        check_ids(ids, model)
        if not 0 < len(ids) < model.max_length:
            where = f"{prompt.where}: " if prompt.where else ""
            raise SettingError(
                f"{where}The prompt is {len(ids):,} tokens long and the context of {model.name} holds "
                f"{model.max_length:,}. Shorten the prompt."
            )
        texts.setdefault(ids, prompt.text)
    if len(texts) * samples > MAX_ANSWERS:
        raise SettingError(
            f"{samples:,} samples of {len(texts):,} prompts are {len(texts) * samples:,} answers; at most "
            f"{MAX_ANSWERS:,} are written to one data set. Ask for fewer, or divide the prompts."
        )
    shortest_first = sorted(texts, key=len)
    return [_Task(texts[ids], ids, sample) for sample in range(samples) for ids in shortest_first]


def _resume(path: Path, origin: Origin) -> dict[Key, Answer]:
    """What the data set at `path` holds, made where it is missing, after cutting off a half-written line.

    SettingError for another origin.
    """
    # Also finds out, before anything is written at length, that the place is not to be written to.
    _append(path, [])
    written: dict[Key, Answer] = {}
    for answer in read_answers(path):
        if answer.origin != origin:
            raise SettingError(
                f"{path} holds text of another run: {_difference(answer.origin, origin)}. Choose another file for this "
                "one."
            )
        written.setdefault(answer.key, answer)
    _drop_half_line(path)
    return written


def _difference(theirs: Origin, ours: Origin) -> str:
    """The first respect in which two origins differ, in words."""
    if theirs.model_fingerprint != ours.model_fingerprint:
        return f"it was written by another model ({theirs.model_name}), or by the same one in another dtype"
    if theirs.tokenizer_fingerprint != ours.tokenizer_fingerprint:
        return "it was written with another tokenizer or chat template"
    name = next(name for name, value in asdict(ours).items() if value != getattr(theirs, name))
    return f"its {name.replace('_', ' ')} is {getattr(theirs, name):g}, not {getattr(ours, name):g}"


def _drop_half_line(path: Path) -> None:
    with open(path, "rb+") as file:
        file.truncate(sum(len(line) for line in file if line.endswith(b"\n")))


def _append(path: Path, answers: Sequence[Answer]) -> None:
    try:
        with open(path, "ab") as file:
            file.write("".join(answer.to_line() for answer in answers).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CorpusError(f"{path} cannot be written: {error.strerror}.") from None


def _answer(
    model: LanguageModel,
    tokenizer: Tokenizer,
    batch: Sequence[_Task],
    origin: Origin,
    settings: AnswerSettings,
    on_step: Callable[[int], None],
) -> list[Answer]:
    outputs = decode_batch(
        model,
        [task.prompt_ids for task in batch],
        [task.chance(settings.sampling.seed) for task in batch],
        settings.sampling,
        settings.max_new_tokens,
        min(tokenizer.vocab_size, model.vocab_size),
        on_step,
    )
    answers = []
    for task, ids in zip(batch, outputs, strict=True):
        ended = ids[-1] in model.eos_ids
        text = tokenizer.decode(ids[:-1] if ended else ids)
        finish: Literal["eos", "length"] = "eos" if ended else "length"
        answers.append(Answer(task.prompt, text, task.prompt_ids, tuple(ids), task.sample, finish, origin))
    return answers


class _Report:
    """Turns tokens into a share of the work: an answer may be as long as `max_new_tokens`, and jumps when it ends."""

    def __init__(self, done: int, total: int, max_new_tokens: int, on_progress: Progress | None) -> None:
        self._done, self._total, self._max_new_tokens = done, total, max_new_tokens
        self._on_progress = on_progress
        self._tokens = self._pending = 0

    def step(self, tokens: int) -> None:
        self._tokens += tokens
        self._pending += tokens
        self._tell()

    def finished(self, answers: int) -> None:
        self._done += answers
        self._pending = 0
        self._tell()

    def _tell(self) -> None:
        if self._on_progress is not None:
            share = (self._done + self._pending / self._max_new_tokens) / self._total
            self._on_progress(min(1.0, share), f"{self._done:,} of {self._total:,} answers, {self._tokens:,} tokens")


def _are_ids(values: list[object]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _origin(model: LanguageModel, tokenizer: Tokenizer, settings: AnswerSettings) -> Origin:
    sampling = settings.sampling
    return Origin(
        model_fingerprint=model_fingerprint(model),
        tokenizer_fingerprint=tokenizer.fingerprint,
        max_new_tokens=settings.max_new_tokens,
        # 1 and 1.0 are one setting.
        temperature=float(sampling.temperature),
        top_k=sampling.top_k,
        top_p=float(sampling.top_p),
        min_p=float(sampling.min_p),
        seed=sampling.seed,
        model_name=model.name,
    )


def _origin_of(record: dict[str, Any]) -> Origin:
    """The origin in a record; ValueError where a field is missing or of another type."""
    values = {entry.name: record.get(entry.name) for entry in fields(Origin)}
    if any(type(values[entry.name]).__name__ != entry.type for entry in fields(Origin)):
        raise ValueError("a field is missing or of another type")
    return Origin(**cast(dict[str, Any], values))
