"""The kinds of drafters: their names, the folders that come with the project, and how each one's files are known.

A kind is a module and a line here. Whatever is none of these is a language model: an independent drafter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from vocabtrim_core.drafters import DrafterModel, eagle, lookup, medusa
from vocabtrim_core.drafters.checkpoints import Checkpoint, read_checkpoint, tensor_names
from vocabtrim_core.errors import ModelError
from vocabtrim_core.language_model import LanguageModel

INDEPENDENT = "independent"
_SHIPPED = Path(__file__).resolve().parent.parent.parent / "data" / "drafters"


@dataclass(frozen=True)
class Kind:
    """A kind of drafter that is added to a target: how its tensors are recognised by name, and how it is made."""

    recognises: Callable[[Collection[str]], bool]
    load: Callable[[Checkpoint, LanguageModel], DrafterModel]


KINDS = {
    "eagle": Kind(eagle.recognises, eagle.load),
    "medusa": Kind(medusa.recognises, medusa.load),
}
WITHOUT_FILES: dict[str, Callable[[LanguageModel], DrafterModel]] = {
    "lookup": lookup.load,
}
NAMES = (INDEPENDENT, *KINDS, *WITHOUT_FILES)


def is_at_hand(source: str) -> bool:
    """Whether a drafter needs no files that are missing: one that does not come with the project may need some."""
    return source not in NAMES or source in WITHOUT_FILES or _folder(source).is_dir()


def shipped_folder(name: str) -> Path:
    """The folder of the drafter for the embedded target that comes with the project. ModelError where it is missing."""
    folder = _folder(name)
    if not folder.is_dir():
        raise ModelError(
            f"The {name} drafter of the embedded model is not there: {folder} is missing. Make it with the scripts in "
            "data/drafters, or give the folder or hub id of a drafter."
        )
    return folder


def _folder(name: str) -> Path:
    return _SHIPPED / f"smollm2-135m-{name}"


def load_added(folder: Path, name: str, target: LanguageModel) -> DrafterModel | None:
    """The drafter in `folder`, where it is one of `KINDS`; None where it is something else."""
    names = tensor_names(folder)
    for kind in KINDS.values():
        if kind.recognises(names):
            return kind.load(read_checkpoint(folder, name), target)
    return None
