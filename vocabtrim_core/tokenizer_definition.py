"""What a folder's tokenizer is, as `transformers` has it: made once, then kept in the user's cache folder.

`transformers` reads several files and rebuilds some tokenizers, so only it can say what they amount to. Importing it
takes longer than counting a small corpus; what is kept needs it no more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from vocabtrim_core.embedded import cache_root
from vocabtrim_core.files import write_atomically

MAX_VOCAB_SIZE = 2**22
MAX_KEPT = 20  # of some megabytes each; those used last
MAX_FILES_BYTES = 256 * 2**20  # of a folder whose definition is kept
_FORMAT = 1  # raise when what is made of a folder changes
_READ = ("*.json", "*.jinja", "*.txt", "*.model", "additional_chat_templates/*.jinja")
"""What `transformers` may look at, as patterns."""


@dataclass(frozen=True)
class TokenizerDefinition:
    """See `Tokenizer`. `plain` and `control` are its two forms as the JSON of the `tokenizers` library.

    `chat_template` may be several, by name. `special_tokens` are the texts that a chat template may use by name
    (`bos_token` and its like).
    """

    fingerprint: str
    vocab_size: int
    control_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]
    bos_id: int | None = field(compare=False)
    chat_template: str | dict[str, str] | None = field(compare=False, repr=False)
    special_tokens: dict[str, str] = field(compare=False, repr=False)
    plain: str = field(compare=False, repr=False)
    control: str = field(compare=False, repr=False)

    def template_for(self, tools: object) -> str:
        """The chat template for chats with these tools, as transformers chooses it. ValueError where there is none."""
        templates = self.chat_template
        if isinstance(templates, dict):
            template = templates.get("tool_use") if tools is not None else None
            template = template or templates.get("default")
        else:
            template = templates
        if template is None:
            raise ValueError("it has several templates, none of them the default")
        return template

    def to_bytes(self) -> bytes:
        """Lines of JSON (the long texts have no line breaks), after one with their sha256."""
        facts = {key: value for key, value in asdict(self).items() if key not in ("plain", "control")}
        lines = "\n".join((json.dumps(facts), self.plain, self.control)).encode()
        return hashlib.sha256(lines).hexdigest().encode() + b"\n" + lines

    @classmethod
    def from_bytes(cls, data: bytes) -> TokenizerDefinition:
        """What `to_bytes` wrote. ValueError for anything else."""
        digest, _, lines = data.partition(b"\n")
        if hashlib.sha256(lines).hexdigest().encode() != digest:
            raise ValueError("not a tokenizer's definition")
        facts, plain, control = lines.decode().split("\n")
        values = json.loads(facts)
        values |= {key: tuple(values[key]) for key in ("control_ids", "eos_ids")}
        return cls(**values, plain=plain, control=control)


def kept_definition(folder: Path, make: Callable[[], TokenizerDefinition]) -> TokenizerDefinition:
    """The definition of the tokenizer in `folder`: what was kept for the same files and libraries, else from `make`."""
    try:
        path = cache_root() / "tokenizers" / _key(folder)
    except (OSError, ValueError):
        return make()  # which says what is wrong with the folder, or takes no part in the cache
    try:
        definition = TokenizerDefinition.from_bytes(path.read_bytes())
        path.touch()
        return definition
    except (OSError, ValueError):
        definition = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, definition.to_bytes())
        for old in sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime)[:-MAX_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        pass  # a cache that cannot be written costs time only
    return definition


def _key(folder: Path) -> str:
    """sha256 hex digest of all that the definition depends on. ValueError where that is too much to read."""
    digest = hashlib.sha256(f"{_FORMAT}".encode())
    for library in ("transformers", "tokenizers"):
        digest.update(f"{library} {metadata.version(library)}".encode())
    size = 0
    for path in _files(folder):
        size += path.stat().st_size
        if size > MAX_FILES_BYTES:
            raise ValueError("too large")
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(json.dumps([str(path.relative_to(folder)), content]).encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    for pattern in _READ:
        yield from (path for path in sorted(folder.glob(pattern)) if path.is_file())
