"""Looking at paths that a user named, which may be anything: too long, in a loop of links, of no user, not Unicode.

`os.path` answers False where the system cannot look; `pathlib` raises for some of these.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from vocabtrim_core.errors import CorpusError


def expanded(path: str | Path) -> Path:
    """The path with `~` written out; as it is where there is no such user."""
    return Path(os.path.expanduser(path))


def is_folder(path: str | Path) -> bool:
    """Whether there is a folder; False wherever that cannot be found out."""
    return os.path.isdir(expanded(path))


def is_file(path: str | Path) -> bool:
    """Whether there is a regular file; False wherever that cannot be found out."""
    return os.path.isfile(expanded(path))


def read_bounded(path: str | Path, max_bytes: int) -> bytes:
    """The content of a regular file of at most `max_bytes`.

    Devices and pipes are refused before they are opened: they may never end. Raises CorpusError, with what is wrong.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise CorpusError(f"{path} is a folder; name the files in it.")
        if not stat.S_ISREG(mode):
            raise CorpusError(f"{path} is a device or a pipe, which may never end; save its content as a file.")
        with open(path, "rb") as file:
            # A file may grow, and those of /proc have no size.
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise CorpusError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:
        raise CorpusError(f"{path} cannot be read: {reason(error)}.") from None
    if len(content) > max_bytes:
        raise CorpusError(f"{path} is too large: at most {max_bytes / 2**20:,.0f} MiB are read at once.")
    return content


def reason(error: OSError | ValueError) -> str:
    """What the system says, without the path, which the sentence around it names."""
    return getattr(error, "strerror", None) or str(error)
