"""Writing files so that a kill at any moment leaves the old content or the new, never a part of it."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# A result takes a megabyte or so.
_ROOM_BYTES = 4 * 2**20


def write_atomically(path: Path, content: bytes, prefix: str = ".vocabtrim-") -> None:
    """Write `content` to `path`. OSError where that fails, and then nothing is left behind.

    Only a kill can leave the temporary file next to it: its name starts with `prefix`.
    """
    with _temporary_file(path.parent, prefix) as temporary:
        temporary.write_bytes(content)
        temporary.chmod(0o644)
        os.replace(temporary, path)


def check_writable(path: Path) -> None:
    """Try whether `path` can be written, without changing it. OSError where it cannot."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with suppress(FileNotFoundError):
        path.lstat()  # which says whether the name is too long
    with _temporary_file(path.parent, ".vocabtrim-") as temporary:
        temporary.write_bytes(bytes(_ROOM_BYTES))


@contextmanager
def _temporary_file(folder: Path, prefix: str) -> Iterator[Path]:
    """A new file, deleted in the end if it is still there. Its name is short, as the final one may be the longest."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=prefix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
