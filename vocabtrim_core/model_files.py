"""A model's files: a local folder, or what the hub has of a hub id."""

from __future__ import annotations

from pathlib import Path

from vocabtrim_core.paths import expanded, is_folder


def model_name(source: str | Path) -> str:
    """What a model is called: its folder's name, or its hub id."""
    return expanded(source).absolute().name if is_folder(source) else str(source)


def model_folder(source: str | Path, weights: bool = True) -> Path:
    """The folder with the model `source` (a folder, or a hub id): configuration and tokenizer, and `weights` if wanted.

    Weights are safetensors; a `.bin` checkpoint, or Medusa's `.pt`, is fetched only where the hub has no safetensors.
    Where the hub cannot be reached, what an earlier run left in the hub's own cache serves. Raises `ModelError` with
    what to do.
    """
    if is_folder(source):
        return expanded(source)
    # Importing what talks to the hub takes longer than counting a small text.
    from vocabtrim_core.hub import fetched

    return fetched(str(source), weights)
