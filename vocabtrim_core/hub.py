"""Models on the hub: the snapshot of a hub id, fetched (or found in the hub's cache) once."""

from __future__ import annotations

from pathlib import Path

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

from vocabtrim_core.defaults import HUB_SECONDS
from vocabtrim_core.errors import ModelError

TOKENIZER_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
_NOT_THESE = ("*/*", "consolidated*")


def fetched(source: str, weights: bool) -> Path:
    """The snapshot of a hub id; see `model_files.model_folder`, which is what to call."""
    patterns = [*TOKENIZER_FILES, "*.safetensors"] if weights else [*TOKENIZER_FILES]
    try:
        folder = _snapshot(source, patterns)
        if weights and not any(folder.glob("*.safetensors")):
            folder = _snapshot(source, [*TOKENIZER_FILES, "pytorch_model*.bin", "medusa*.pt"])
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
