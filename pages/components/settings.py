"""The settings that every page shares: one value each, in the sidebar and in the link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.errors import SettingError
from vocabtrim_core.models import DTYPES, EMBEDDED
from vocabtrim_core.sampling import SamplingSettings

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


@dataclass(frozen=True)
class Settings:
    """What is compared, and how.

    `target` and `drafter` are "embedded", a folder or a hub id; `corpus` is the key of the counted corpus that the
    ranking comes from; `k` is what was asked for, which a vocabulary may not allow.
    """

    target: str = EMBEDDED
    drafter: str = EMBEDDED
    dtype: str = "bfloat16"
    corpus: str = SHIPPED
    k: int = 4096
    gamma: int = 3
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    max_new_tokens: int = 96
    repeats: int = 3

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Settings:
        """The settings in a link's query parameters; what is missing or makes no sense is left at its default."""
        found = {}
        for field in fields(cls):
            if field.name in query and (value := _parsed(field.name, query[field.name])) is not None:
                found[field.name] = value
        return cls(**found)  # type: ignore[arg-type]

    def to_query(self) -> dict[str, str]:
        """The query parameters that `from_query` reads: those that are not at their default."""
        default = asdict(Settings())
        return {name: str(value) for name, value in asdict(self).items() if value != default[name]}

    @property
    def generation(self) -> GenerationSettings:
        sampling = SamplingSettings(self.temperature, self.top_k, self.top_p, self.min_p, self.seed)
        return GenerationSettings(self.gamma, self.max_new_tokens, sampling)


def _parsed(name: str, text: str) -> str | int | float | None:
    default = getattr(Settings(), name)
    if isinstance(default, str):
        usable = bool(text.strip()) and len(text) <= MAX_TEXT and (name != "dtype" or text in DTYPES)
        return text.strip() if usable else None
    try:
        value = type(default)(text)
    except ValueError:
        return None
    low, high = LIMITS[name]
    return value if low <= value <= high and _works(name, value) else None


def _works(name: str, value: int | float) -> bool:
    try:
        return Settings(**{name: value}).generation is not None  # type: ignore[arg-type]
    except SettingError:
        return False
