"""A model's files: a local folder, or the snapshot of a hub id fetched (or found in the hub's cache) once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

import httpx2
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from transformers.utils import logging as transformers_logging

from vocabtrim_core.defaults import HUB_SECONDS
from vocabtrim_core.errors import ModelError
from vocabtrim_core.paths import expanded, is_folder

TOKENIZER_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
_NOT_THESE = ("*/*", "consolidated*")


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
            f"There is no folder {source}, and it could not be fetched: the model hub cannot be reached (it gets "
            f"{HUB_SECONDS} seconds to answer). To work offline, give the folder of a model on this machine."
        ) from error
    except OSError as error:  # includes every other answer of the hub
        raise ModelError(f"The model {source} could not be fetched: {error}. Try again, or give a folder.") from error


def _snapshot(repo: str, patterns: list[str]) -> Path:
    return Path(
        snapshot_download(
            repo,
            allow_patterns=patterns,
            ignore_patterns=list(_NOT_THESE),
            etag_timeout=HUB_SECONDS,
            local_files_only=not _answers(repo),
        )
    )


def _answers(repo: str) -> bool:
    """Whether the hub answers in time: without a limit of its own, its library waits for minutes."""
    try:
        HfApi().model_info(repo, timeout=HUB_SECONDS)
    except (httpx2.TransportError, OfflineModeIsEnabled):
        return False
    except HfHubHTTPError:
        return True  # and the download says what is wrong
    return True


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
    if isinstance(error, UnpicklingError):
        # PyTorch's own sentence advises to read the file with the check switched off.
        return "it holds something else than tensors, or is damaged."
    if isinstance(error, RecursionError):
        return "it goes on in circles, or is nested too deep."
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if text.endswith((".", "!", "?")) else f"{text}."
