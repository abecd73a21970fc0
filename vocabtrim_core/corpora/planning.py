"""A corpus as shards: which files there are, how each is read, and where it is cut."""

from __future__ import annotations

import codecs
import glob
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from vocabtrim_core.corpora import limits, text
from vocabtrim_core.corpora.decompression import Decompressed
from vocabtrim_core.corpora.documents import CorpusFile, HubDataset, LeftOut, OnLeftOut, ReadingOptions
from vocabtrim_core.corpora.encodings import SAMPLE_BYTES, check_encoding, detect_encoding, too_large
from vocabtrim_core.corpora.formats import KINDS, format_of
from vocabtrim_core.corpora.hub_datasets import PREFIX, open_dataset, parse_hub_dataset, pinned
from vocabtrim_core.corpora.shards import Reader, Shard, open_raw
from vocabtrim_core.corpora.tables import parquet_row_groups
from vocabtrim_core.corpora.token_files import BLOCK_TOKENS, not_as_promised, token_layout
from vocabtrim_core.errors import CorpusError
from vocabtrim_core.paths import expanded, is_folder

# Of a part of a file: small enough to share a file evenly among cores, large enough that what is kept of each (about a
# megabyte, to resume from) is little beside it.
SHARD_BYTES = 64 * 2**20
SMALL_SHARD_BYTES = 16 * 2**20
SHARDS_A_FILE = 32

Source = str | Path | CorpusFile | HubDataset

# What `datasets.save_to_disk` writes beside the data.
_DATASET_STATE = "state.json"
_DATASET_NOTES = (_DATASET_STATE, "dataset_info.json", "dataset_dict.json")


@dataclass(frozen=True)
class _File:
    """A file to read: `name` as the user knows it; `named` where it was named by itself; `real` behind all links."""

    name: str
    path: Path
    real: Path
    named: bool


def plan_shards(
    sources: Sequence[Source],
    options: ReadingOptions | None = None,
    target_bytes: int | None = None,
    on_left_out: OnLeftOut | None = None,
) -> list[Shard]:
    """The shards of files, folders (all usable files in them), globs, uploads and data sets, in a stable order.

    A string may also name a data set ("hf:NAME:SPLIT", see `parse_hub_dataset`). A folder that `datasets.save_to_disk`
    wrote is read as such. Token files are not looked for in folders, as any program's `.bin` could be one: name them,
    or give a glob. Links are followed, and a path found twice is read once. A file that cannot be used is an error
    where it was named, and reported to `on_left_out` where it was found in a folder or by a glob; so are files of other
    kinds, together.
    Plain `.jsonl`, text and token files and plain parquet files are cut into shards of about `target_bytes` (None: of
    what suits the file, 64 MiB at most); the documents do not depend on the cuts. `Shard.key` is a sha256: for uploads
    of their content and format; for paths of the absolute path, size, time of change and the part of it (hashing
    terabytes before the count would double the reading); for data sets of the name, configuration, split, commit and
    part.
    Raises CorpusError where nothing is usable, SettingError for an unknown encoding.
    """
    options = options or ReadingOptions()
    if options.encoding:
        check_encoding(options.encoding)
    shards: list[Shard] = []
    seen: set[Path] = set()
    left_out: list[LeftOut] = []
    for source in sources:
        if isinstance(source, str) and source.startswith(PREFIX):
            source = parse_hub_dataset(source)
        if isinstance(source, HubDataset):
            shards += _dataset_shards(source)
        elif isinstance(source, CorpusFile):
            shards.append(_upload_shard(source, options))
        else:
            for file in _files(source):
                if isinstance(file, LeftOut):
                    left_out.append(file)
                    continue
                if file.real in seen:
                    continue
                seen.add(file.real)
                try:
                    shards += _file_shards(file, options, target_bytes)
                except CorpusError as error:
                    if file.named:
                        raise
                    left_out.append(LeftOut(file.name, str(error), serious=isinstance(error, _UnreadableError)))
    for each in left_out:
        if on_left_out is not None:
            on_left_out(each)
    if not shards:
        first = f" The first problem: {left_out[0].reason}" if left_out else ""
        raise CorpusError(f"There is nothing to read in what was named.{first} Choose files of these kinds: {KINDS}.")
    return _with_unique_files(shards)


class _UnreadableError(CorpusError):
    """A file that the system does not let be read, whatever is in it."""


def _files(source: str | Path) -> Iterator[_File | LeftOut]:
    """The files that a path or glob stands for, in a stable order, and what was passed over."""
    if not str(source).strip():
        raise CorpusError("An empty name names nothing to count. Name a file, a folder (. for this one) or a data set.")
    try:
        path = expanded(source)
        if path.is_dir():
            yield from _files_in(path, set())
        elif path.exists() or not glob.has_magic(str(path)):
            yield _File(path.name, path, _real(path), named=True)
        else:
            yield from _files_matching(path)
    except (OSError, ValueError) as error:
        raise CorpusError(f"{source} cannot be read: {str(error).rstrip('.')}.") from None


def _files_matching(pattern: Path) -> Iterator[_File | LeftOut]:
    """The files of known kinds that a glob gives, and those in the folders that it gives."""
    matches = sorted(map(Path, glob.glob(str(pattern), recursive=True)))
    if not matches:
        raise CorpusError(f"No file matches {pattern}.")
    walked: set[str] = set()
    others: Counter[str] = Counter()
    for match in matches:
        if match.is_dir():
            yield from _files_in(match, walked)
        elif format_of(match.name)[0]:
            yield _File(str(match), match, _real(match), named=False)
        else:
            others[match.suffix.lower()] += 1
    yield from _other_kinds(str(pattern), others)


def _files_in(folder: Path, walked: set[str]) -> Iterator[_File | LeftOut]:
    """The files of known kinds in a folder and those below it. Hidden ones, and folders walked before, are left out."""
    unread: list[OSError] = []
    others: Counter[str] = Counter()
    for root, folders, names in os.walk(folder, followlinks=True, onerror=unread.append):
        real = os.path.realpath(root)
        if real in walked:
            folders.clear()
            continue
        walked.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        saved = _saved_dataset_files(Path(root)) if _DATASET_STATE in names else None
        for name in sorted(names) if saved is None else saved:
            if name.startswith(".") or name in _DATASET_NOTES:
                continue
            path = Path(root, name)
            if format_of(name)[0] in (None, "tokens"):
                others[path.suffix.lower()] += 1
            else:
                yield _File(os.path.relpath(path, folder.parent), path, _real(path), named=False)
    for error in unread:
        yield LeftOut(str(error.filename), f"{error.filename} cannot be read: {error.strerror}.", serious=True)
    yield from _other_kinds(str(folder), others)


def _other_kinds(place: str, endings: Counter[str]) -> Iterator[LeftOut]:
    if endings:
        kinds = ", ".join(f"{count:,} {ending or 'without an ending'}" for ending, count in endings.most_common(8))
        more = ", ..." if len(endings) > 8 else ""
        files = f"{endings.total():,} file{'s' if endings.total() > 1 else ''}"
        yield LeftOut(place, f"{place} holds {files} of kinds that are not looked for there ({kinds}{more}).")


def _real(path: Path) -> Path:
    """The path behind all links. Unlike `Path.resolve`, it bears with links that lead in a circle."""
    return Path(os.path.realpath(path))


def _saved_dataset_files(folder: Path) -> list[str] | None:
    """The data files of a folder that `datasets.save_to_disk` wrote (it may hold caches too), None for another."""
    try:
        state = orjson.loads((folder / _DATASET_STATE).read_bytes())
        return [os.path.basename(file["filename"]) for file in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _upload_shard(file: CorpusFile, options: ReadingOptions) -> Shard:
    if len(file.data) > limits.MAX_FILE_BYTES:
        raise CorpusError(too_large(file.name, len(file.data)))
    shard = _recognised(Shard(file.name, file.name, "", len(file.data), file, "text"), options)
    return replace(shard, key=_digest([file.sha256, shard.format, shard.compression]))


def _file_shards(file: _File, options: ReadingOptions, target_bytes: int | None) -> list[Shard]:
    try:
        stat = file.path.stat()
        if not file.path.is_file():
            raise CorpusError(f"{file.path} is not a file.")
        whole = Shard(
            name=file.name,
            file=file.name,
            key="",
            bytes=stat.st_size,
            source=file.path,
            format="text",
            named=file.named,
            modified=stat.st_mtime_ns,
            stored=stat.st_size,
        )
        shards = _cut(_recognised(whole, options), _shard_bytes(stat.st_size, target_bytes))
    except FileNotFoundError:
        raise CorpusError(f"{file.path} does not exist.") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        # What pyarrow says of damaged data is an OSError too, but none of the system's.
        kind = _UnreadableError if isinstance(error, OSError) and error.errno else CorpusError
        raise kind(f"{file.path} cannot be read: {str(error).rstrip('.')}.") from None
    identity = [str(file.path.absolute()), stat.st_size, stat.st_mtime_ns]
    return [replace(shard, key=_digest([*identity, shard.start, shard.stop])) for shard in shards]


def _shard_bytes(size: int, target: int | None) -> int:
    """The size to aim at for the shards of a file of `size` bytes."""
    return max(1, min(SHARD_BYTES, max(SMALL_SHARD_BYTES, size // SHARDS_A_FILE)) if target is None else target)


def _recognised(shard: Shard, options: ReadingOptions) -> Shard:
    """The shard of a whole file with its format, compression and encoding."""
    source = shard.source
    assert not isinstance(source, HubDataset)
    format_, compression = format_of(shard.file)
    if format_ is None:
        raise CorpusError(f"{shard.file} is of a kind that is not known by its ending. Choose {KINDS}.")
    shard = replace(shard, format=format_, compression=compression)
    if format_ in ("parquet", "arrow"):
        return shard
    with open_raw(source) as raw:
        reader: Reader = Decompressed(raw, compression, shard.file) if compression else raw
        sample = _read_up_to(reader, SAMPLE_BYTES)
        whole = len(sample) < SAMPLE_BYTES
    if format_ == "tokens":
        dtype, start, stop = token_layout(shard.file, sample, options)
        if stop is not None and not compression and shard.bytes != stop:
            raise CorpusError(not_as_promised(shard.file, shard.bytes - start, stop - start))
        return replace(shard, encoding=dtype, start=start, stop=stop)
    if options.encoding:
        encoding, warning = check_encoding(options.encoding), ""
    else:
        encoding, warning = detect_encoding(shard.file, sample, whole)
    if format_ == "json" and encoding == "utf-8" and _is_jsonl(sample):
        shard = replace(shard, format="jsonl")
    return replace(shard, encoding=encoding, warning=warning)


def _cut(shard: Shard, target: int) -> list[Shard]:
    """The shards of the whole file `shard`, of about `target` bytes each where it can be cut."""
    assert isinstance(shard.source, Path)
    if shard.compression:
        return [shard]
    if shard.format == "parquet":
        return _cut_row_groups(shard, target)
    if shard.bytes <= target:
        return [shard]
    # Evenly, as one that is much smaller leaves a core idle at the end.
    target = math.ceil(shard.bytes / math.ceil(shard.bytes / target))
    if shard.format == "tokens":
        block = BLOCK_TOKENS * np.dtype(shard.encoding).itemsize
        offsets = range(shard.start, shard.bytes, _multiple(block, target))
        return _parts(shard, [(offset, 1 + (offset - shard.start) // block) for offset in offsets], shard.bytes)
    if shard.encoding != "utf-8" or shard.format not in ("jsonl", "text"):
        return [shard]
    with shard.source.open("rb") as file:
        if shard.format == "jsonl":
            cuts = {_after_line(file, offset) for offset in range(target, shard.bytes, target)}
        else:
            step = _multiple(text.PIECE_BYTES, target)
            cuts = {text.cut_after(file, offset) for offset in range(step, shard.bytes, step)}
    starts = [0, *sorted(cuts - {shard.bytes})]
    return _parts(shard, [(start, None if start else 1) for start in starts], shard.bytes)


def _cut_row_groups(shard: Shard, target: int) -> list[Shard]:
    assert isinstance(shard.source, Path)
    groups = parquet_row_groups(pq.read_metadata(str(shard.source)))
    # Stored as well as the file as a whole.
    stored = shard.bytes / max(1, sum(size for _, size in groups))
    starts: list[tuple[int, int | None]] = [(0, 1)]
    sizes = [0]
    row = 1
    for index, (rows, decompressed) in enumerate(groups):
        size = round(decompressed * stored)
        if sizes[-1] and sizes[-1] + size > target:
            starts.append((index, row))
            sizes.append(0)
        sizes[-1] += size
        row += rows
    shards = _parts(shard, starts, len(groups))
    return [replace(part, bytes=size) for part, size in zip(shards, sizes, strict=True)]


def _parts(shard: Shard, starts: Sequence[tuple[int, int | None]], end: int) -> list[Shard]:
    """`shard` cut at `starts`, each with the line where it falls."""
    if len(starts) == 1:
        return [shard]
    stops = [*(start for start, _ in starts[1:]), end]
    return [
        replace(
            shard,
            name=f"{shard.file}[{number}/{len(starts)}]",
            bytes=stop - start,
            start=start,
            # The last one reads to the end, like a file that is not cut.
            stop=stop if number < len(starts) else shard.stop,
            first_line=first_line,
        )
        for number, ((start, first_line), stop) in enumerate(zip(starts, stops, strict=True), start=1)
    ]


def _dataset_shards(dataset: HubDataset) -> list[Shard]:
    dataset = pinned(dataset)
    rows = open_dataset(dataset)
    split = (rows.info.splits or {}).get(dataset.split)
    parts = max(1, rows.num_shards)
    name = f"{PREFIX}{dataset.name}:{dataset.split}"
    identity = [*astuple(dataset), *_folder_state(dataset.name)]
    return [
        Shard(
            name=name if parts == 1 else f"{name}[{part + 1}/{parts}]",
            file=name,
            key=_digest([*identity, part, parts]),
            bytes=(split.num_bytes or 0) // parts if split else 0,
            source=dataset,
            format="dataset",
            start=part,
            stop=parts,
        )
        for part in range(parts)
    ]


def _folder_state(name: str) -> list[object]:
    """Path, size and time of change of every file of a data set that is a local folder; empty for one on the hub."""
    files = sorted(path for path in Path(name).rglob("*") if path.is_file()) if is_folder(name) else []
    return [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _with_unique_files(shards: list[Shard]) -> list[Shard]:
    """The shards with another name for the second of two files that have the same one."""
    owners: dict[str, object] = {}
    unique = []
    for shard in shards:
        name, number = shard.file, 1
        owner = id(shard.source) if isinstance(shard.source, CorpusFile) else shard.source
        while owners.setdefault(name, owner) != owner:
            number += 1
            name = str(shard.source) if isinstance(shard.source, Path) else f"{shard.file} ({number})"
        unique.append(replace(shard, file=name, name=name + shard.name.removeprefix(shard.file)))
    return unique


def _after_line(file: BinaryIO, offset: int) -> int:
    """The first place at or after `offset` that follows a line end, or the end of the file."""
    at = offset - 1
    file.seek(at)
    while data := file.read(limits.CHUNK_BYTES):
        if (found := data.find(b"\n")) >= 0:
            return at + found + 1
        at += len(data)
    return at


def _is_jsonl(sample: bytes) -> bool:
    """Whether a `.json` file holds a record a line: its first two lines are each an object."""
    lines = [line for line in sample.removeprefix(codecs.BOM_UTF8).split(b"\n", 3)[:2] if line.strip()]
    try:
        return len(lines) == 2 and isinstance(orjson.loads(lines[0]), dict) and lines[1].lstrip().startswith(b"{")
    except ValueError:
        return False


def _read_up_to(reader: Reader, size: int) -> bytes:
    chunks = []
    while size > 0 and (chunk := reader.read(size)):
        chunks.append(chunk)
        size -= len(chunk)
    return b"".join(chunks)


def _multiple(unit: int, target: int) -> int:
    """The largest multiple of `unit` that is no more than `target`, but one at least."""
    return max(1, target // unit) * unit


def _digest(identity: list[object]) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()
