"""What the page Tune has worked out in this session: the trace, curves by ranking, measured points, costly tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from pages.components.settings import Settings
from pages.components.state import Models
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.embedded import cache_root
from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.comparison import Contest, Run
from vocabtrim_core.evaluation.explaining import CostlyToken, costly_tokens
from vocabtrim_core.evaluation.measuring import Measured, Point, measure
from vocabtrim_core.evaluation.profile import LatencyProfile
from vocabtrim_core.evaluation.replay import Replay, replay, replayed_sizes
from vocabtrim_core.evaluation.teacher_forcing import heads_by_depth, longest_draft
from vocabtrim_core.evaluation.trace import Trace, TunePrompt, kept_trace, usable_prompts
from vocabtrim_core.evaluation.tuning import Tuned, tune
from vocabtrim_core.progress import Progress
from vocabtrim_core.trees import DraftShape


@dataclass
class TuneSession:
    """A tuning. `asked` is what the trace depends on; the ranking may change, and then only the curve is made anew.
    `began` is when, in seconds since 1970, with which `settings`."""

    asked: tuple
    prompts: list[TunePrompt]
    gammas: tuple[int, ...]
    trace: Trace
    began: float
    settings: Settings
    left_out: list[str] = field(default_factory=list)
    others: float | None = None  # processors that other programs used meanwhile
    profile: LatencyProfile | None = None
    curves: dict[tuple, Tuned] = field(default_factory=dict)
    measured: dict[str, list[Measured]] = field(default_factory=dict)
    runs: dict[str, dict[Point, list[list[Run]]]] = field(default_factory=dict)
    costly: dict[tuple, list[CostlyToken]] = field(default_factory=dict)
    trees: dict[tuple, list[Replay]] = field(default_factory=dict)

    def tuned(self, models: Models, settings: Settings, report: Progress) -> Tuned:
        """The curve for the ranking in use, worked out once."""
        key = (models.ranking.digest, models.k)
        if key not in self.curves:
            chosen = contest(models, settings)
            assert models.k is not None
            also, keep = [models.k], _kept()
            dtype = models.pair.target.number_format
            tuned = tune(chosen, models.ranking, self.trace, self.gammas, also, dtype, report, keep, self.profile)
            self.profile = tuned.profile
            self.curves[key] = tuned
        return self.curves[key]

    def replayed(self, models: Models, shape: DraftShape) -> list[Replay] | None:
        """What drafted trees give at a handful of k, where that has been worked out."""
        return self.trees.get((models.ranking.digest, models.k, shape))

    def replay(self, models: Models, shape: DraftShape, tuned: Tuned, report: Progress) -> None:
        """Work it out: the drafter runs again."""
        assert models.head is not None and models.k is not None
        ks = replayed_sizes(tuned.prediction.ks, [models.k, tuned.recommendation.k])
        found = replay(models.pair, self.trace, models.head, shape, ks, report)
        self.trees[models.ranking.digest, models.k, shape] = found

    def measure(self, models: Models, settings: Settings, points: list[Point], report: Progress) -> None:
        """Run some points for real; they stand beside the curve of this ranking."""
        found, runs = measure(contest(models, settings), self.prompts, points, settings.repeats, report)
        self.measured[models.ranking.digest] = found
        self.runs[models.ranking.digest] = runs

    def tokens(self, models: Models, k: int, gamma: int) -> list[CostlyToken]:
        """What cost acceptance at one point, worked out once."""
        key = (models.ranking.digest, k, gamma)
        if key not in self.costly:
            assert models.head is not None
            self.costly[key] = costly_tokens(self.trace, heads_by_depth(models.pair, models.head), k, gamma)
        return self.costly[key]


def contest(models: Models, settings: Settings) -> Contest:
    """The pair and how it decodes, by the settings."""
    strings = (settings.stop_string,) if settings.stop_string else ()
    stop = StopCondition(frozenset(models.pair.target.eos_ids), strings, models.pair.tokenizer.decode)
    return Contest(models.pair, models.head, models.k, settings.generation, stop)


def asked(settings: Settings, prompts: object, gammas: tuple[int, ...]) -> tuple:
    """What a trace depends on, of the settings on the page."""
    how = replace(settings.generation, gamma=1, tree=None)
    return settings.target, settings.drafter, settings.dtype, how, settings.stop_string, prompts, gammas


def start(
    models: Models, settings: Settings, prompts: list[TunePrompt], key: tuple, gammas: tuple[int, ...], report: Progress
) -> TuneSession:
    """Trace the prompts, or take the trace that is kept of them."""
    if not prompts:
        raise SettingError("There are no prompts to tune on. Choose at least one task, or upload some.")
    began = time.time()
    one = contest(models, settings)
    usable, left_out = usable_prompts(models.pair, prompts)
    gammas = gammas[: longest_draft(models.pair, max(gammas))]
    how = GenerationSettings(max(gammas), settings.max_new_tokens, settings.generation.sampling)
    trace = kept_trace(_kept(), models.pair, usable, how, one.stop, report)
    return TuneSession(key, usable, gammas, trace, began, settings, left_out)


def _kept() -> Path:
    """Where traces and profiles are kept."""
    return cache_root() / "traces"
