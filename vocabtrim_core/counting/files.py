"""Writing files so that a kill at any moment leaves the old content or the new, never a part of it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PART_SUFFIX = ".part"


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`. OSError where that fails, and then nothing is left behind.

    Only a kill can leave the temporary file next to it: a hidden one that ends in `PART_SUFFIX`.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=PART_SUFFIX)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
