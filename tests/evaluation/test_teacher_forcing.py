"""States of every kind of drafter along the target's text are those that it drafts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.checkpoints import LAYERS, VOCAB, config, eagle1, eagle3, medusa, save
from toys import NEVER, causal_lm, decode, language_model, llama_config

from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.drafters import eagle
from vocabtrim_core.drafters import medusa as medusa_drafter
from vocabtrim_core.drafters.choosing import Choice
from vocabtrim_core.drafters.registry import load_added
from vocabtrim_core.errors import SettingError
from vocabtrim_core.evaluation.acceptance import acceptance, acceptance_chances
from vocabtrim_core.evaluation.teacher_forcing import depths, drafter_states, heads_by_depth, longest_draft
from vocabtrim_core.evaluation.trace import TunePrompt, record, trace_key
from vocabtrim_core.models import ModelPair
from vocabtrim_core.passes import alone
from vocabtrim_core.sampling import SamplingSettings
from vocabtrim_core.trees import DraftShape

# In float64, where a block and single tokens give the same logits up to 1e-15.
TARGET = language_model(causal_lm(0, llama_config(VOCAB, LAYERS), torch.float64))
KEPT = torch.tensor([0, 3, 4, 7, 9, 11, 12, 20, 21, 30, 33, 39])
LAYOUTS: dict[str, tuple[dict[str, torch.Tensor], dict[str, Any] | None]] = {
    "EAGLE-1": (eagle1(), config()),
    "EAGLE-3": (eagle3(), config()),
    "EAGLE-3, norm before residual": (eagle3(), config(norm_before_residual=True)),
    "EAGLE-3, trained for fewer tokens": (eagle3("layers.0", KEPT), config(draft_vocab_size=len(KEPT))),
    "Medusa": (medusa(), None),
    "Medusa, the target's head, two blocks": (medusa(4, 2, own_heads=False), None),
}
PROMPTS = [TunePrompt((1, 2, 3)), TunePrompt((9, 4)), TunePrompt((4, 4, 8, 1, 0))]


def quiet(share: float, message: str) -> None:
    pass


@pytest.fixture(params=list(LAYOUTS))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> ModelPair:
    tensors, settings = LAYOUTS[request.param]
    drafter = load_added(save(tmp_path / "drafter", tensors, settings), "tiny", TARGET)
    assert drafter is not None
    return ModelPair(TARGET, drafter, None)  # type: ignore[arg-type]


def test_states_are_those_that_the_drafter_drafts_from(pair: ModelPair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a slot, position, mask or depth off by one, which random agreement would not show."""
    # What is drafted must be the text, so that is of tokens that every head has.
    prompt, output = torch.tensor([5, 9, 20, 7]), torch.tensor([33, 3, 12, 9, 9, 0, 21])
    text = torch.cat([prompt, output])
    depth = longest_draft(pair, 4)
    found = drafter_states(pair, prompt, output, 4)
    assert found.shape[:2] == (depths(pair, 4), len(output))
    head = pair.drafter.head
    assert head is not None
    seen: list[torch.Tensor] = []
    forced: list[int] = []

    def take(logits: torch.Tensor, sampling: SamplingSettings, generator: torch.Generator) -> Choice:
        seen.extend(logits)
        ranks = torch.tensor([forced.pop(0) for _ in range(len(logits))])
        return Choice(ranks, torch.ones(len(ranks)), None)

    monkeypatch.setattr(eagle, "choose", take)
    monkeypatch.setattr(medusa_drafter, "choose", take)
    rank_of = {token: rank for rank, token in enumerate(head.ranking.tolist())}
    heads = heads_by_depth(pair, head)
    with torch.inference_mode():
        states = TARGET.new_backbone(pair.drafter.taps).run(text)
        for start in range(len(output)):
            settled = len(prompt) + start
            drafter = pair.drafter.new_drafter(head)
            drafter.begin(text[:settled], states[:settled])
            seen.clear()
            drafted = [rank_of[token] for token in text[settled : settled + depth].tolist()]
            forced[:] = drafted + [0] * (depth - len(drafted))
            alone(drafter.propose(DraftShape(depth), SamplingSettings(), torch.Generator()))
            for step in range(len(drafted)):
                one = heads[min(step, len(heads) - 1)]
                expected = one.logits(found[step, start + step][None])[0]
                torch.testing.assert_close(seen[step], expected)


def test_greedy_counts_are_the_engines(pair: ModelPair) -> None:
    """Bug: acceptance of a kind with states by depth read at another depth than the engine drafts at."""
    head = pair.drafter.head
    assert head is not None
    order = torch.randperm(head.vocab_size, generator=torch.Generator().manual_seed(3))
    ranked = head.reordered(head.ranking[order])
    trace = record(pair, PROMPTS, GenerationSettings(4, 20), NEVER, quiet)
    # Few tokens to choose from make agreement likely.
    ks, gammas = [1, 3, ranked.vocab_size], [longest_draft(pair, 4)]
    found = acceptance(acceptance_chances(trace, heads_by_depth(pair, ranked), ks), gammas, ks)
    longest = 0
    for row, gamma in enumerate(gammas):
        for column, k in enumerate(ks):
            runs = [
                decode(TARGET, pair.drafter.new_drafter(ranked, k), prompt.ids, GenerationSettings(gamma, 20))
                for prompt in PROMPTS
            ]
            lengths = [[sum(len(c.drafted_ids) == n for c in run) for n in range(gamma + 1)] for run in runs]
            assert found.cycles[:, row, : gamma + 1, column].tolist() == lengths
            outside = [sum(cycle.out_of_vocabulary for cycle in run) for run in runs]
            assert found.out_of_vocabulary[:, row, column].tolist() == outside
            longest = max(longest, *(cycle.accepted for run in runs for cycle in run))
    assert longest >= 1


def test_what_a_kind_needs_is_said(pair: ModelPair, tmp_path: Path) -> None:
    """Bug: a prompt too short for the drafter fails inside torch; a trace too shallow for gamma is used again."""
    with pytest.raises(SettingError, match="one token"):
        record(pair, [TunePrompt((3,))], GenerationSettings(2, 5), NEVER, quiet)
    shallow, deep = (trace_key(pair, PROMPTS, GenerationSettings(gamma, 5), NEVER) for gamma in (1, 3))
    assert shallow != deep
