"""The settings that every page shares: one value each, in the sidebar and in the link."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from vocabtrim_core import defaults
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.embedded import EMBEDDED
from vocabtrim_core.errors import SettingError
from vocabtrim_core.number_format import AUTO, number_format
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.shipped import Tuning, shipped_tuning
from vocabtrim_core.trees import DraftShape

SHIPPED = "shipped"
LIMITS: dict[str, tuple[float, float]] = {
    "k": (1, 2**31),
    "gamma": (1, 16),
    "temperature": (0.0, 2.0),
    "top_k": (0, 1_000_000),
    "top_p": (0.05, 1.0),
    "min_p": (0.0, 0.9),
    "seed": (0, 2**31),
    "max_new_tokens": (1, 1024),
    "repeats": (1, 9),
}
MAX_TEXT = 500
MAX_LISTED = 4_000
CHAIN = "chain"  # In a link, instead of a tree's shape.
BYTES = "bytes"  # In a list of tokens, instead of an id: the tokens that spell characters byte by byte.
MAX_WEIGHT = 100
_TREE = re.compile(r"\d{1,3},\d{1,3},\d{1,3}")
_TOKENS = re.compile(rf"({BYTES}|\d{{1,9}})(,({BYTES}|\d{{1,9}}))*")


@dataclass(frozen=True)
class Settings:
    """What is compared, and how.

    `target` is "embedded", a folder or a hub id, `drafter` a kind that comes with the embedded target, or a folder or a
    hub id; `tree` is "depth,top-k,nodes" of drafted trees, or empty for chains; `corpus` is the mixture of counted
    corpora that the ranking comes from (see `mixture`), `prior` the key of the corpus that it leans on, "none", or
    empty for what the text needs, and `order` that of a list that is used instead of counts, or empty; `pinned` and
    `banned` are token ids with commas between, or "bytes"; `k` is what was asked for, which a vocabulary may not allow;
    `stop_string` ends a text, or empty. k, gamma and tree are by default what was fastest in the number format.
    """

    target: str = EMBEDDED
    drafter: str = defaults.DRAFTER
    dtype: str = AUTO
    corpus: str = SHIPPED
    prior: str = ""
    order: str = ""
    pinned: str = ""
    banned: str = ""
    k: int = field(default_factory=lambda: _tuned(AUTO).k)
    gamma: int = field(default_factory=lambda: _tuned(AUTO).gamma)
    tree: str = field(default_factory=lambda: _tuned_tree(AUTO))
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    max_new_tokens: int = defaults.MAX_NEW_TOKENS
    repeats: int = defaults.REPEATS
    stop_string: str = ""

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Settings:
        """The settings in a link's query parameters; what is missing or makes no sense is left at its default."""
        found = {}
        for one in fields(cls):
            if one.name in query and (value := _parsed(one.name, query[one.name])) is not None:
                found[one.name] = value
        return replace(_defaults(str(found.get("dtype", AUTO))), **found)  # type: ignore[arg-type]

    def to_query(self) -> dict[str, str]:
        """The query parameters that `from_query` reads: those that are not at their default."""
        default = asdict(_defaults(self.dtype)) | {"dtype": AUTO}
        changed = {name: str(value) for name, value in asdict(self).items() if value != default[name]}
        return changed | ({"tree": CHAIN} if "tree" in changed and not self.tree else {})

    @property
    def generation(self) -> GenerationSettings:
        sampling = SamplingSettings(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)
        return GenerationSettings(self.gamma, self.max_new_tokens, sampling, _shape(self.tree) if self.tree else None)


def _defaults(dtype: str) -> Settings:
    """The settings where nothing but the number format was chosen: what was fastest in it."""
    tuned = _tuned(dtype)
    return Settings(dtype=dtype, k=tuned.k, gamma=tuned.gamma, tree=_tuned_tree(dtype))


def _tuned(dtype: str) -> Tuning:
    return shipped_tuning(number_format(dtype).name)


def _tuned_tree(dtype: str) -> str:
    return ",".join(map(str, _tuned(dtype).tree or ()))


def tree_text(text: str) -> str:
    """A typed tree as `Settings` has it; empty for a chain. SettingError where it is no tree, or out of range."""
    shape = re.sub(r"\s", "", text)
    if shape and not _TREE.fullmatch(shape):
        raise SettingError(f"“{text}” is not a draft tree. Type its depth, top-k and number of nodes, as in 4,4,16.")
    if shape:
        _shape(shape)  # Refuses what is out of range.
    return shape


def mixture(text: str) -> dict[str, int]:
    """The weight, 0 to `MAX_WEIGHT`, of each corpus in "chat:60,code:40"; one without a weight has the largest."""
    weights = {}
    for part in text.split(","):
        key, _, weight = part.partition(":")
        if key.strip():
            weights[key.strip()] = min(int(weight), MAX_WEIGHT) if re.fullmatch("[0-9]{1,3}", weight) else MAX_WEIGHT
    return weights


def mixture_text(weights: Mapping[str, int]) -> str:
    """What `mixture` reads. The weight of a corpus alone does not matter."""
    if len(weights) == 1:
        return next(iter(weights))
    return ",".join(f"{key}:{weight}" for key, weight in weights.items())


def _shape(tree: str) -> DraftShape:
    return DraftShape(*map(int, tree.split(",")))


def _parsed(name: str, text: str) -> str | int | float | None:
    default = getattr(Settings(), name)
    if name == "stop_string":
        return text[:MAX_TEXT]
    if name in ("pinned", "banned"):
        return text if len(text) <= MAX_LISTED and _TOKENS.fullmatch(text) else None
    if name == "tree" and text == CHAIN:
        return ""
    if name == "tree":
        return text if _TREE.fullmatch(text) and _works(name, text) else None
    if isinstance(default, str):
        usable = bool(text.strip()) and len(text) <= MAX_TEXT and (name != "dtype" or text in defaults.DTYPES)
        return text.strip() if usable else None
    try:
        value = type(default)(text)
    except ValueError:
        return None
    low, high = LIMITS[name]
    return value if low <= value <= high and _works(name, value) else None


def _works(name: str, value: str | int | float) -> bool:
    try:
        return Settings(**{name: value}).generation is not None  # type: ignore[arg-type]
    except SettingError:
        return False
