"""Files that are kept for a visitor for a while: bounded in time, for each visitor and for all, the oldest go first."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vocabtrim_core.files import write_atomically

DAY = 86_400.0


@dataclass(frozen=True)
class Shelves:
    """A folder under `root` for each visitor, named by a hash of the visitor's key.

    A file is kept for `days` after its visitor was last there, of each visitor at most `visitor_bytes`, of all
    `total_bytes`.
    """

    root: Path
    days: float = 7
    visitor_bytes: int = 64 * 2**20
    total_bytes: int = 2 * 2**30

    def put(self, visitor: str, name: str, content: bytes) -> bool:
        """Keep a file, whatever else has to go for it; False where it is too large, OSError where that fails."""
        if len(content) > self.visitor_bytes:
            return False
        folder = self._folder(visitor)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(folder / name, content)
        _remove_oldest(_files(folder), self.visitor_bytes)
        self.clean()
        return True

    def take(self, visitor: str) -> dict[str, bytes]:
        """The visitor's files by name, the oldest first; from now on they are kept as long again."""
        self.clean()
        found = {}
        for _, _, path in sorted(_files(self._folder(visitor))):
            if path.name.startswith("."):  # being written
                continue
            try:
                found[path.name] = path.read_bytes()
                os.utime(path)
            except OSError:  # Another process has just removed it.
                found.pop(path.name, None)
        return found

    def remove(self, visitor: str, name: str) -> None:
        """Keep a file no longer."""
        (self._folder(visitor) / name).unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove what is too old or too much."""
        files = [file for folder in _folders(self.root) for file in _files(folder)]
        oldest = time.time() - self.days * DAY
        for modified, _, path in files:
            if modified < oldest:
                path.unlink(missing_ok=True)
        _remove_oldest([file for file in files if file[0] >= oldest], self.total_bytes)
        for folder in _folders(self.root):
            try:
                # A folder just made is about to have a file.
                if folder.stat().st_mtime < time.time() - 60:
                    folder.rmdir()
            except OSError:  # It still has files, or is gone.
                continue

    def _folder(self, visitor: str) -> Path:
        return self.root / hashlib.sha256(visitor.encode()).hexdigest()


def _folders(root: Path) -> list[Path]:
    return [folder for folder in root.iterdir() if folder.is_dir()] if root.is_dir() else []


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """Time of the last change, size and path of each file."""
    return list(_stated(folder)) if folder.is_dir() else []


def _stated(folder: Path) -> Iterator[tuple[float, int, Path]]:
    for path in folder.iterdir():
        try:
            state = path.stat()
        except OSError:  # Another process has just removed it.
            continue
        yield state.st_mtime, state.st_size, path


def _remove_oldest(files: list[tuple[float, int, Path]], most: int) -> None:
    left = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if left <= most:
            return
        path.unlink(missing_ok=True)
        left -= size
