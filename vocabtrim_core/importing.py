"""Token counts and token lists that other programs made.

| file | content | becomes |
|---|---|---|
| speculators `token_freq.pt` | `{id: count}` | counts |
| FR-Spec and SGLang token map, `.pt` | list (or tensor) of ids, the most frequent first | a ranking |
| `.json` | list of ids, `{id: count}` or `{token: count}` | a ranking, or counts |
| EAGLE-3's `{"d2t", "t2d"}` or either of them, `.pt`, `.npy` | offsets, a mask | a ranking |
| MTPLX and others, `.npy` | array of ids | a ranking |
| `.npz` of this program | `TokenCounts` | counts |

Such a file does not say which tokenizer it is for; what can be checked is that every id or token exists. Nor does an
array say whether it holds ids or the offsets of a `d2t`: its values do (`draft_maps`), and where they do not, its name.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from vocabtrim_core.corpora import CorpusFile
from vocabtrim_core.counting import HELD_OUT_GROUPS, CountedFile, TokenCounts
from vocabtrim_core.draft_maps import ids_of_offsets, readings
from vocabtrim_core.errors import CorpusError, TokenizerError
from vocabtrim_core.prompts import is_unicode
from vocabtrim_core.tokenization import Tokenizer
from vocabtrim_core.tokenizer_definition import MAX_VOCAB_SIZE
from vocabtrim_core.vocabulary import Ranking, forced_token_ids, rank_tokens

SUFFIXES = (".pt", ".npy", ".json", ".npz")
MAX_BYTES = 32 * 2**20
D2T, T2D = "d2t", "t2d"  # of EAGLE-3 checkpoints: draft to target, target to draft
# Of a {token: count} file, so much of the text may be of tokens that the tokenizer does not have.
MAX_UNKNOWN_SHARE = 0.01

_LARGEST = 10**18  # int64 holds the sum of a few such numbers.

# Scripts often write the integers of numpy into a .pt file. Allowing these makes numbers of them, and nothing else.
_SCALAR = np.int64(0).__reduce__()[0]
_NUMPY_INTEGERS: list[Any] = [_SCALAR, np.dtype, *(type(np.dtype(kind)) for kind in "bBhHiIlLqQ")]
_NUMPY_INTEGERS += [(_SCALAR, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")]


@dataclass(frozen=True, eq=False)
class Imported:
    """What a file held: counts (all of them calibration, of no documents), or only an order, which is a ranking.

    `notes` are sentences for the user: what was dropped or assumed.
    """

    content: TokenCounts | Ranking
    notes: tuple[str, ...]


def import_tokens(
    file: CorpusFile, tokenizer: Tokenizer, eos_ids: Iterable[int] = (), usable: int | None = None
) -> Imported:
    """Read a file made elsewhere (see the module) for `tokenizer`.

    A list is completed to a ranking: what must be kept in front (`forced_token_ids`), what it leaves out behind, as in
    `rank_tokens`, where `usable` is told too. CorpusError for a file of another kind or damaged, TokenizerError for
    ids or tokens that the tokenizer does not have.
    """
    suffix = Path(file.name).suffix.lower()
    if len(file.data) > MAX_BYTES:
        raise CorpusError(f"{file.name} has more than {MAX_BYTES // 2**20} MiB, so it is no list of tokens.")
    if suffix == ".npz":
        counts = TokenCounts.from_bytes(file.data, file.name)
        if counts.tokenizer_fingerprint != tokenizer.fingerprint:
            raise TokenizerError(
                f"{file.name} was counted with another tokenizer ({counts.tokenizer_name}) than {tokenizer.name}."
            )
        return Imported(counts, ())
    content = _read(file, suffix)
    notes = [f"The file does not name its tokenizer; it is taken to be {tokenizer.name}."]
    if isinstance(content, _Pairs):
        return Imported(_counts(content, file, tokenizer, notes), tuple(notes))
    ids = _distinct_ids(_as_ids(content, file.name, tokenizer, notes), file.name, tokenizer, notes)
    forced = forced_token_ids(tokenizer, eos_ids)
    usable = tokenizer.vocab_size if usable is None else usable
    ids = ids[ids < usable]
    added = len(np.setdiff1d(forced, ids))
    if added:
        notes.append(f"{_tokens(added)} that must always be kept (control tokens and their like) were not in the list.")
    if len(ids) > 1 and (np.diff(ids) > 0).all():
        notes.append("The ids are in ascending order, so the list says which tokens to keep, not which of them first.")
    worth = np.zeros(usable, dtype=np.int64)
    worth[ids] = np.arange(len(ids), 0, -1)  # What is listed earlier is worth more.
    return Imported(rank_tokens(worth, forced, Path(file.name).stem, usable), tuple(notes))


class _Pairs(list):
    """The items of a dict, (key, value) each; a key that a JSON object repeats is there twice."""


class _Array(list):
    """The values of an array of whole numbers: ids, or offsets. `of` names what it is where that is known."""

    def __init__(self, values: np.ndarray, of: str | None = None) -> None:
        super().__init__(values.tolist())
        self.of = of


def _read(file: CorpusFile, suffix: str) -> list | _Pairs:
    """The list in a file, or the items of its dict."""
    if suffix == ".pt":
        content = _read_torch(file)
    elif suffix == ".npy":
        content = _read_numpy(file)
    elif suffix == ".json":
        try:
            content = json.loads(file.data, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{file.name} is not valid JSON.") from error
    else:
        raise CorpusError(f"{file.name} is not a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file.")
    if isinstance(content, np.ndarray) and content.ndim == 1:
        stem = Path(file.name).stem.lower()
        content = _array(content, next((of for of in (D2T, T2D) if of in stem), None), file.name)
    if isinstance(content, dict) and content and content.keys() <= {D2T, T2D}:
        content = _draft_map(content, file.name)
    if isinstance(content, dict):
        content = _Pairs(content.items())
    if isinstance(content, tuple):
        content = list(content)
    if not isinstance(content, list):
        raise CorpusError(f"{file.name} holds neither a list of token ids nor counts of tokens.")
    if not content:
        raise CorpusError(f"{file.name} is empty.")
    _check_length(len(content), file.name)
    return content


def _read_torch(file: CorpusFile) -> object:
    """What `torch.save` wrote, a vector as an array."""
    import torch  # which takes seconds, and only these files need

    try:
        if zipfile.is_zipfile(io.BytesIO(file.data)):
            with zipfile.ZipFile(io.BytesIO(file.data)) as archive:
                if sum(member.file_size for member in archive.infolist()) > MAX_BYTES:
                    raise ValueError("too large when unpacked")
        with torch.serialization.safe_globals(_NUMPY_INTEGERS):
            content = torch.load(io.BytesIO(file.data), map_location="cpu", weights_only=True)
    # torch raises whatever unpickling meets: pickle, zip, EOF, type and key errors.
    except Exception as error:
        raise CorpusError(f"{file.name} is no list or dict of numbers made by torch.save, or is damaged.") from error
    if isinstance(content, torch.Tensor) and content.ndim == 1:
        return _from_tensor(content, file.name)
    if isinstance(content, dict) and content.keys() <= {D2T, T2D}:
        return {
            key: _from_tensor(value, file.name) if isinstance(value, torch.Tensor) else value
            for key, value in content.items()
        }
    return content


def _from_tensor(tensor: Any, name: str) -> np.ndarray:
    # A tensor may stand for many more numbers than its file holds.
    _check_length(tensor.numel(), name)
    if str(tensor.layout) != "torch.strided" or tensor.device.type != "cpu":
        raise CorpusError(f"{name} holds a {str(tensor.layout).removeprefix('torch.')} tensor; save a dense one.")
    return np.array(tensor.tolist())


def _read_numpy(file: CorpusFile) -> np.ndarray:
    stream = io.BytesIO(file.data)
    try:
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        values = np.frombuffer(file.data, dtype, offset=stream.tell())
    # numpy raises errors of several kinds for a header that makes no sense.
    except (ValueError, TypeError, SyntaxError, OverflowError, MemoryError, RecursionError) as error:
        raise CorpusError(f"{file.name} is no array made by numpy.save, or is damaged.") from error
    if shape != values.shape:
        raise CorpusError(f"{file.name} should hold one row of whole numbers; its header says {shape}.")
    return values


def _array(values: object, of: str | None, name: str) -> list:
    """The values of an array, or of a mask (t2d) the ids that it marks."""
    if not isinstance(values, np.ndarray) or values.ndim != 1:
        raise CorpusError(f"{name} should hold one row of whole numbers in {of or 'it'}.")
    _check_length(len(values), name)
    if values.dtype.kind not in "biu":
        raise CorpusError(f"{name} holds numbers of type {values.dtype} where whole numbers should be. Save int64.")
    if len(values) and not -_LARGEST < int(values.min()) <= int(values.max()) < _LARGEST:
        raise CorpusError(f"{name} has a number of more than 18 digits where whole numbers should be.")
    if values.dtype.kind == "b" or (of == T2D and set(np.unique(values)) <= {0, 1}):
        return np.flatnonzero(values).tolist()
    return _Array(values, of)


def _check_length(length: int, name: str) -> None:
    if length > MAX_VOCAB_SIZE:
        raise CorpusError(f"{name} has {length:,} entries, more than any vocabulary ({MAX_VOCAB_SIZE:,}).")


def _draft_map(parts: dict, name: str) -> list:
    """The ids of {d2t, t2d}, or of one of them: t2d says which there are, d2t in what order."""
    offsets = _array(parts[D2T], D2T, name) if D2T in parts else None
    marked = _array(parts[T2D], T2D, name) if T2D in parts else None
    if offsets is None or marked is None:
        return (offsets if marked is None else marked) or []
    for ids in (ids_of_offsets(np.array(offsets, dtype=np.int64)).tolist(), list(offsets)):
        if sorted(ids) == marked:
            return ids
    raise CorpusError(f"{name} is damaged: d2t and t2d do not say the same.")


def _as_ids(content: list, name: str, tokenizer: Tokenizer, notes: list[str]) -> list:
    """The ids of a list, or of an array that holds ids or offsets. CorpusError where it could be either."""
    if not all(isinstance(value, Integral) and not isinstance(value, bool) for value in content):
        return content  # to be refused
    values = np.array([_integer(value, name) for value in content], dtype=np.int64)
    of = content.of if isinstance(content, _Array) else None
    found = readings(values, tokenizer.vocab_size)
    listed = not isinstance(content, _Array)
    if len(values) > 1 and not values.any():
        raise CorpusError(f"{name} is all zeros: a d2t that was never filled in. Make it again.")
    if "ids" in found and (listed or len(found) == 1):
        if of == D2T:
            notes.append("Its d2t holds token ids, not offsets from the row, as engines expect of a d2t.")
        return content
    either = "token ids, or the offsets of a d2t (token id = row + offset)"
    if found == {"offsets"} and (not listed or values.min() < 0):
        notes.append("It holds the offsets of a d2t: token id = row + offset.")
        return ids_of_offsets(values).tolist()
    if found:
        raise CorpusError(
            f"{name} could be {either}: save ids as a list without repetitions, or offsets with their t2d "
            '({"d2t": ..., "t2d": ...} in a .pt file).'
        )
    if of == D2T or (not listed and values.min() >= 0 and (np.diff(values) >= 0).all()):
        raise TokenizerError(
            f"{name} was made for another tokenizer than {tokenizer.name}, or is damaged: it is neither {either}."
        )
    return content


def _distinct_ids(content: list, name: str, tokenizer: Tokenizer, notes: list[str]) -> np.ndarray:
    """int64[n]: the ids of a list in its order, each once."""
    ids = np.array([_integer(value, name) for value in content], dtype=np.int64)
    _check_ids(ids, name, tokenizer)
    distinct = ids[np.sort(np.unique(ids, return_index=True)[1])]
    if len(distinct) < len(ids):
        notes.append(f"{_tokens(len(ids) - len(distinct))} listed before were removed.")
    return distinct


def _counts(pairs: _Pairs, file: CorpusFile, tokenizer: Tokenizer, notes: list[str]) -> TokenCounts:
    values = np.array([_integer(value, file.name) for _, value in pairs], dtype=np.int64)
    if (values < 0).any():
        raise CorpusError(f"{file.name} has a negative count.")
    if values.sum(dtype=np.float64) > _LARGEST:
        raise CorpusError(f"{file.name} counts more tokens than can be added up. Divide its counts.")
    keys = [key for key, _ in pairs]
    if all(map(_is_id, keys)):
        ids = np.array([_id(key, file.name) for key in keys], dtype=np.int64)
        _check_ids(ids, file.name, tokenizer)
    else:
        ids = _ids_of_tokens(keys, values, file.name, tokenizer, notes)
    known = ids >= 0
    if len(np.unique(ids[known])) < np.count_nonzero(known):
        notes.append("Some tokens are there more than once; their counts were added up.")
    counts = np.zeros(tokenizer.vocab_size, dtype=np.int64)
    np.add.at(counts, ids[known], values[known])
    if not counts.any():
        raise CorpusError(f"{file.name} counts nothing.")
    return TokenCounts(
        calibration=counts,
        held_out_groups=np.zeros((HELD_OUT_GROUPS, len(counts)), dtype=np.int64),
        calibration_documents=0,
        held_out_documents=0,
        files=(CountedFile(file.name, file.sha256, 0, int(counts.sum())),),
        tokenizer_name=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        holdout=0.0,
    )


def _ids_of_tokens(keys: list, values: np.ndarray, name: str, tokenizer: Tokenizer, notes: list[str]) -> np.ndarray:
    """int64[n]: the id of each token, spelled as in the tokenizer's file or as plain text; -1 where there is none."""
    ids = np.array([_id_of_token(str(key), tokenizer) for key in keys], dtype=np.int64)
    unknown = ids < 0
    if values[unknown].sum() > MAX_UNKNOWN_SHARE * values.sum():
        raise TokenizerError(
            f"{name} counts tokens that {tokenizer.name} does not have ({str(keys[int(unknown.argmax())])!r} is one). "
            "It was made for another tokenizer."
        )
    if unknown.any():
        notes.append(f"{_tokens(int(unknown.sum()))} that the tokenizer does not have were left out.")
    return ids


def _id_of_token(token: str, tokenizer: Tokenizer) -> int:
    if not is_unicode(token):
        return -1
    found = tokenizer.id_of(token)
    if found is not None:
        return found
    ids = tokenizer.encode_texts([token])[0]
    return ids[0] if len(ids) == 1 else -1


def _check_ids(ids: np.ndarray, name: str, tokenizer: Tokenizer) -> None:
    outside = ids[(ids < 0) | (ids >= tokenizer.vocab_size)]
    if len(outside):
        raise TokenizerError(
            f"{name} has the token id {outside[0]:,}, but {tokenizer.name} has ids from 0 to "
            f"{tokenizer.vocab_size - 1:,}. It was made for another tokenizer."
        )


def _is_id(key: object) -> bool:
    if isinstance(key, str):
        return key.isascii() and key.isdecimal()
    return isinstance(key, Integral) and not isinstance(key, bool)


def _id(key: object, name: str) -> int:
    if isinstance(key, str):
        # Python refuses to read a number of thousands of digits.
        return int(key) if len(key) < 19 else _integer(key, name)
    return _integer(key, name)


def _integer(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not -_LARGEST < int(value) < _LARGEST:
        raise CorpusError(f"{name} has {_shown(value)} where a whole number of at most 18 digits should be.")
    return int(value)


def _shown(value: object) -> str:
    """A value in a few words, however large, and however deep it is nested."""
    if isinstance(value, str):
        return repr(value[:40])
    if value is None or isinstance(value, float | bool):
        return str(value)
    return "a number" if isinstance(value, Integral) else f"a value of type {type(value).__name__}"


def _tokens(number: int) -> str:
    return f"{number:,} token" if number == 1 else f"{number:,} tokens"
