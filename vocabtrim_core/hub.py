"""A model's files: a local folder, or the snapshot of a hub id fetched (or found in the hub's cache) once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError
from transformers.utils import logging as transformers_logging

from vocabtrim_core.errors import ModelError

TOKENIZER_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
_NOT_THESE = ("*/*", "consolidated*")


def model_folder(source: str | Path, weights: bool = True) -> Path:
    """The folder with the model `source` (a folder, or a hub id): configuration and tokenizer, and `weights` if wanted.

    Weights are safetensors; a `.bin` checkpoint, or Medusa's `.pt`, is fetched only where the hub has no safetensors.
    Where the hub cannot be reached, what an earlier run left in the hub's own cache serves. Raises `ModelError` with
    what to do.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    patterns = [*TOKENIZER_FILES, "*.safetensors"] if weights else [*TOKENIZER_FILES]
    try:
        folder = _snapshot(str(source), patterns)
        if weights and not any(folder.glob("*.safetensors")):
            folder = _snapshot(str(source), [*TOKENIZER_FILES, "pytorch_model*.bin", "medusa*.pt"])
        return folder
    except HFValidationError as error:
        raise ModelError(f"There is no folder {source}, and a model hub id looks like owner/name.") from error
    except GatedRepoError as error:
        raise ModelError(
            f"The model {source} is on the hub, but its owner has to grant access first. Ask there, log in with "
            "`hf auth login`, or give a local folder."
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"There is no folder {source}, and the model hub knows no model of that name.") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"There is no folder {source}, and it could not be fetched from the model hub, which this machine does not "
            "reach. Give the folder of a model on this machine."
        ) from error
    except OSError as error:  # includes every other answer of the hub
        raise ModelError(f"The model {source} could not be fetched: {error}. Try again, or give a folder.") from error


def _snapshot(repo: str, patterns: list[str]) -> Path:
    return Path(snapshot_download(repo, allow_patterns=patterns, ignore_patterns=list(_NOT_THESE)))


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep the library's own progress bars and warnings off the console: what they say is checked and reported here."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """What an error of a library says, cut to its first line, as a sentence."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if text.endswith((".", "!", "?")) else f"{text}."
