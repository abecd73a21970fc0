"""Which code runs a model's body: the lean one where it covers the model and agrees with `transformers`, else that."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from vocabtrim_core.backbones import Backbone, body_states
from vocabtrim_core.errors import ModelError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.lean import LeanBackbone, LeanBody, NotCoveredError
from vocabtrim_core.proof import Proof

# Of the largest logit, on average: above what rounding changes (0.5 % in bfloat16, where transformers differs from
# itself by 0.3 % when it reads the text in parts), far below what a wrong mask or position does.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-4, torch.bfloat16: 1.5e-2}
_CHECKED_TOKENS = 24


@dataclass(frozen=True)
class EngineNote:
    """What runs a model here, and one clause that says why."""

    name: str
    reason: str


@dataclass(frozen=True, eq=False)
class Engine(EngineNote):
    """What runs a body: "lean" or "transformers"."""

    _runs: LeanBody | Proof

    def new_backbone(self, taps: tuple[int, ...] = (), fixed_rows: int | None = None) -> Backbone:
        """The body with an empty cache. See `LeanBackbone` for `fixed_rows`: only the lean engine offers it."""
        if isinstance(self._runs, LeanBody):
            return LeanBackbone(self._runs, taps, fixed_rows)
        if fixed_rows is not None:
            raise ModelError(
                f"A model that runs through transformers ({self.reason}) cannot compute a fixed number of rows. "
                "Compare its texts without, in float32."
            )
        return self._runs.new_backbone(taps)

    @property
    def pads(self) -> bool:
        """Whether texts of several lengths can be run as one batch, padded on the left."""
        return isinstance(self._runs, LeanBody) or self._runs.pads


def choose_engine(name: str, body: PreTrainedModel, head: RankedHead) -> Engine:
    """The lean engine if it covers `body`, of the model `name`, and gives the same logits, else `transformers` with the
    reason.

    Raises `ModelError` where the text would be wrong with both.
    """
    # Transformers computes float16 slowly on a CPU, so there the body is float32.
    wide = ", and computes in float32 with weights rounded to float16" if head.weight.dtype == torch.float16 else ""
    try:
        lean = LeanBody(body, head.weight.dtype)
    except NotCoveredError as error:
        return _transformers(name, body, f"{error}{wide}")
    difference = _difference(body, lean, head)
    tolerance = _TOLERANCE.get(head.weight.dtype, 0.0)
    if not difference <= tolerance:
        reason = f"the lean engine's logits differ by {difference:.1g} of the largest, of {tolerance:.1g} allowed"
        return _transformers(name, body, reason + wide)
    return Engine("lean", f"its logits agree with transformers' within {difference:.1g} of the largest", lean)


def _transformers(name: str, body: PreTrainedModel, reason: str) -> Engine:
    proof = Proof(name, body)
    return Engine("transformers", f"{reason}; {proof.note}" if proof.note else reason, proof)


@torch.inference_mode()
def _difference(body: PreTrainedModel, lean: LeanBody, head: RankedHead) -> float:
    """The mean difference of the logits over a text, of the largest: of whole passes, short ones and single tokens."""
    step = max(1, head.vocab_size // _CHECKED_TOKENS)
    ids = torch.arange(_CHECKED_TOKENS).mul(step).remainder(head.vocab_size)
    parts = ids.split([12, 1, 1, 5, 5])
    ours = LeanBackbone(lean)
    found = head.logits(torch.cat([ours.run(part) for part in parts])).float()  # [n, V]
    expected = head.logits(body_states(body, ids, use_cache=False)).float()
    return float((found - expected).abs().mean() / expected.abs().max().clamp(min=1e-6))
