"""What the target writes on held-out prompts, and the drafter's states along it: enough for any ranking, k and gamma.

The target decodes each prompt once, as always. Then the drafter reads that output once ("teacher-forced"), and its
hidden states are kept rather than its logits: the head, in whatever order and of whatever size, is applied afterwards.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch

from vocabtrim_core.decoding.context import draftable_tokens
from vocabtrim_core.decoding.engine import GenerationSettings, generate, output_room
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.teacher_forcing import depths, drafter_states, shortest_prompt, weights
from vocabtrim_core.files import write_atomically
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.models import ModelPair
from vocabtrim_core.number_format import DTYPES
from vocabtrim_core.progress import Progress
from vocabtrim_core.sampling import SamplingSettings

FORMAT = 2  # raise when what is written, or what it depends on, changes


@dataclass(frozen=True)
class TunePrompt:
    """A prompt in tokens, the task it belongs to and where it was read ("file.jsonl:3")."""

    ids: tuple[int, ...]
    task: str = ""
    where: str = ""


@dataclass(frozen=True, eq=False)
class TracedText:
    """One prompt with the target's output y.

    `output_ids` int64[L]; `target_probs` float64[L], the probability that each had under the law it was drawn from (of
    the plain softmax when greedy); `draftable`, how many tokens of the output, from the first one on, could have been
    drafted: not the last one that there was room for, and none beyond the drafter's context; `states` [D, L, H], the
    drafter's hidden state for each of these output tokens, zeros for the others, by depth in the draft (D = 1: the same
    at every depth).
    """

    prompt: TunePrompt
    output_ids: np.ndarray
    target_probs: np.ndarray
    draftable: int
    states: torch.Tensor


@dataclass(frozen=True, eq=False)
class Trace:
    """The texts of all prompts. `target_seconds` is what the target's plain decoding took, its prefill included, and
    `drafter_seconds` the drafter's reading."""

    texts: tuple[TracedText, ...]
    sampling: SamplingSettings
    target_seconds: float
    drafter_seconds: float

    @property
    def tokens(self) -> int:
        return sum(len(text.output_ids) for text in self.texts)

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """Tokens of each prompt and of the output after it."""
        return [(len(text.prompt.ids), len(text.output_ids)) for text in self.texts]

    def to_bytes(self, key: str) -> bytes:
        """An .npz file that says what it depends on, its `key`."""
        lengths = [len(text.output_ids) for text in self.texts]
        states = torch.cat([text.states for text in self.texts], dim=1)  # [D, T, H]
        note = {
            "format": FORMAT,
            "key": key,
            "sampling": asdict(self.sampling),
            "dtype": str(states.dtype).removeprefix("torch."),
            "prompts": [[list(text.prompt.ids), text.prompt.task, text.prompt.where] for text in self.texts],
            "draftable": [text.draftable for text in self.texts],
            "seconds": [self.target_seconds, self.drafter_seconds],
        }
        buffer = io.BytesIO()
        np.savez(
            buffer,
            note=np.frombuffer(json.dumps(note).encode(), dtype=np.uint8),
            lengths=np.array(lengths, dtype=np.int64),
            output_ids=np.concatenate([text.output_ids for text in self.texts]),
            target_probs=np.concatenate([text.target_probs for text in self.texts]),
            # numpy has no bfloat16.
            states=states.contiguous().view(torch.int16 if states.dtype == torch.bfloat16 else torch.int32).numpy(),
        )
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, key: str) -> Trace:
        """Raises ValueError for bytes that are not a whole trace with this key."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                arrays = {name: file[name] for name in ("note", "lengths", "output_ids", "target_probs", "states")}
            note = json.loads(arrays["note"].tobytes())
            if (note["format"], note["key"]) != (FORMAT, key):
                raise ValueError("another trace")
            states = torch.from_numpy(arrays["states"]).view(DTYPES[note["dtype"]])
            ends = np.cumsum(arrays["lengths"])[:-1]
            outputs, probs = (np.split(arrays[name], ends) for name in ("output_ids", "target_probs"))
            texts = [
                TracedText(TunePrompt(tuple(ids), task, where), output, prob, draftable, state)
                for (ids, task, where), output, prob, draftable, state in zip(
                    note["prompts"],
                    outputs,
                    probs,
                    note["draftable"],
                    states.split(arrays["lengths"].tolist(), dim=1),
                    strict=True,
                )
            ]
            return cls(tuple(texts), SamplingSettings(**note["sampling"]), *note["seconds"])
        except (KeyError, TypeError, OSError, EOFError, RuntimeError, BadZipFile) as error:
            raise ValueError(f"not a whole trace: {error}") from error


def kept_trace(
    folder: Path | None,
    pair: ModelPair,
    prompts: Sequence[TunePrompt],
    settings: GenerationSettings,
    stop: StopCondition,
    on_progress: Progress,
) -> Trace:
    """The trace that `folder` has of exactly this, else a new one, which is left there. Raises as `record` does.

    The ranking, k and gamma are no part of "this"; the models' weights, their dtype, the prompts, sampling, length and
    stops are.
    """
    if folder is None:
        return record(pair, prompts, settings, stop, on_progress)
    key = trace_key(pair, prompts, settings, stop)
    path = folder / f"trace-{key[:32]}.npz"
    try:
        return Trace.from_bytes(path.read_bytes(), key)
    except (FileNotFoundError, ValueError):
        pass  # None there, or one that was damaged: it is made anew.
    except OSError as error:
        raise SettingError(f"The trace {path} cannot be read: {error.strerror}. Choose another folder.") from None
    trace = record(pair, prompts, settings, stop, on_progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, trace.to_bytes(key))
    except OSError as error:
        raise SettingError(f"The trace cannot be kept in {folder}: {error.strerror}. Choose another folder.") from None
    return trace


def record(
    pair: ModelPair,
    prompts: Sequence[TunePrompt],
    settings: GenerationSettings,
    stop: StopCondition,
    on_progress: Progress,
) -> Trace:
    """Decode every prompt with the target alone, then have the drafter read the outputs.

    Each prompt draws from a seed of its own, `settings.sampling.seed` plus its number. Raises SettingError where there
    are no prompts, or one leaves no room for an output.
    """
    if not prompts:
        raise SettingError("There are no prompts to tune on. Give at least one.")
    rooms = [_room(pair, prompt, settings) for prompt in prompts]
    began = time.perf_counter()
    outputs = []
    for number, (prompt, room) in enumerate(zip(prompts, rooms, strict=True)):
        on_progress(0.95 * number / len(prompts), f"The target answers prompt {number + 1} of {len(prompts)}")
        outputs.append(_decoded(pair.target, prompt, room, seeded(settings.sampling, number), stop))
    answered = time.perf_counter()
    texts = []
    for number, (prompt, room, (ids, probs)) in enumerate(zip(prompts, rooms, outputs, strict=True)):
        on_progress(0.95 + 0.05 * number / len(prompts), f"The drafter reads answer {number + 1} of {len(prompts)}")
        draftable = draftable_tokens(pair.drafter.max_length, len(prompt.ids), room)
        texts.append(TracedText(prompt, ids, probs, draftable, _states(pair, prompt, ids, draftable, settings.gamma)))
    read = time.perf_counter()
    return Trace(tuple(texts), settings.sampling, answered - began, read - answered)


def _states(pair: ModelPair, prompt: TunePrompt, output: np.ndarray, draftable: int, gamma: int) -> torch.Tensor:
    """`TracedText.states`: the drafter reads no more than it could draft."""
    head = pair.drafter.head
    assert head is not None, "only a drafter with a head is traced"
    states = torch.zeros(depths(pair, gamma), len(output), head.hidden_size, dtype=head.activations)
    if draftable:
        read = torch.from_numpy(output[:draftable])
        states[:, : len(read)] = drafter_states(pair, torch.tensor(prompt.ids), read, gamma)
    return states


def seeded(sampling: SamplingSettings, number: int) -> SamplingSettings:
    """The settings of the prompt with this number: a seed of its own."""
    return SamplingSettings(**{**asdict(sampling), "seed": (sampling.seed + number) % 2**63})


def trace_key(pair: ModelPair, prompts: Sequence[TunePrompt], settings: GenerationSettings, stop: StopCondition) -> str:
    """Sha256 of all that a trace depends on."""
    sampling = SamplingSettings() if settings.sampling.greedy else settings.sampling
    parts = {
        "format": FORMAT,
        **model_digests(pair),
        "depths": depths(pair, settings.gamma),
        "lengths": [pair.target.max_length, pair.drafter.max_length],
        "prompts": [[prompt.ids, prompt.task, prompt.where] for prompt in prompts],
        "max_new_tokens": settings.max_new_tokens,
        "sampling": asdict(sampling),
        "eos_ids": sorted(stop.eos_ids),
        "stop_strings": stop.stop_strings,
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def model_digests(pair: ModelPair) -> dict[str, str]:
    """Sha256 of the weights of target and drafter."""
    return {"target": _target_digest(pair.target), "drafter": _digest(pair.drafter.name, weights(pair))}


def _target_digest(target: LanguageModel) -> str:
    head = target.head
    tensors = [*target.body.state_dict().items(), ("head", head.weight)]
    if head.bias is not None:
        tensors.append(("bias", head.bias))
    return _digest(f"{head.logit_scale} {head.soft_cap} {target.body.config}", tensors)


def _digest(also: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Sha256 of weights: names, dtypes, shapes and bytes."""
    digest = hashlib.sha256(also.encode())
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def usable_prompts(
    pair: ModelPair, prompts: Sequence[TunePrompt], traced: bool = True
) -> tuple[list[TunePrompt], list[str]]:
    """Those that the pair can read, and a sentence for each other one. SettingError where none is left.

    To be `traced`, a prompt must give the drafter something to begin with; speculative decoding goes on without.
    """
    usable, notes = [], []
    for prompt in prompts:
        problem = _problem(pair, prompt)
        if problem is None and traced and len(prompt.ids) < shortest_prompt(pair):
            problem = f"The prompt is one token, which gives the drafter {pair.drafter.name} nothing to begin with."
        if problem is None:
            usable.append(prompt)
        else:
            notes.append(f"Left out: {prompt.where + ': ' if prompt.where else ''}{problem}")
    if notes and not usable:
        raise SettingError(f"None of the prompts can be used. {notes[0]}")
    return usable, notes


def _problem(pair: ModelPair, prompt: TunePrompt) -> str | None:
    if prompt.ids and len(prompt.ids) < pair.target.max_length:
        return None
    return f"The prompt is {len(prompt.ids):,} tokens long and the context holds {pair.target.max_length:,}."


def _room(pair: ModelPair, prompt: TunePrompt, settings: GenerationSettings) -> int:
    problem = _problem(pair, prompt)
    if problem is not None:
        where = f"{prompt.where}: " if prompt.where else ""
        raise SettingError(f"{where}{problem} Change or remove it.")
    return output_room(pair.target, prompt.ids, settings.max_new_tokens)


def _decoded(
    target: LanguageModel, prompt: TunePrompt, room: int, sampling: SamplingSettings, stop: StopCondition
) -> tuple[np.ndarray, np.ndarray]:
    """The output's ids and the probability of each."""
    ids: list[int] = []
    probs: list[float] = []
    how = GenerationSettings(max_new_tokens=room, sampling=sampling)
    for cycle in generate(target, None, list(prompt.ids), how, stop):
        assert cycle.next_prob is not None  # vanilla: every token is the target's own
        ids += cycle.emitted_ids
        probs.append(cycle.next_prob)
    return np.array(ids, dtype=np.int64), np.array(probs)
