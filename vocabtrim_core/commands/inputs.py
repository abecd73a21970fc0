"""Mistyped paths, reported before what decodes is imported: that takes seconds."""

from __future__ import annotations

import os
from argparse import Namespace

from vocabtrim_core.commands.loading import open_counts
from vocabtrim_core.defaults import BUILTIN
from vocabtrim_core.embedded import EMBEDDED
from vocabtrim_core.model_files import model_folder
from vocabtrim_core.paths import is_folder
from vocabtrim_core.prompts import read_prompts


def check_inputs(arguments: Namespace) -> None:
    """Raise where prompts, counts or a model are to be read from a place that is not there.

    What reads them says so: each is read here only where that cannot succeed.
    """
    prompts = getattr(arguments, "prompts", None) or getattr(arguments, "tasks", None)
    if prompts and prompts != BUILTIN and not _is_there(prompts):
        read_prompts(prompts)
    counts = getattr(arguments, "counts", None)
    if counts and not _is_there(counts):
        open_counts(counts)
    for source in (arguments.target, arguments.drafter):
        if source != EMBEDDED and _is_path(source) and not is_folder(source):
            model_folder(source)


def _is_there(path: str | os.PathLike) -> bool:
    return os.path.exists(path) and not os.path.isdir(path)


def _is_path(source: str) -> bool:
    """Whether this cannot be a hub id, which is owner/name."""
    return source.startswith(("/", ".", "~")) or source.count("/") > 1
