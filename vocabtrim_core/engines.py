"""Which code runs a model's body: the lean one where it covers the model and agrees with `transformers`, else that."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from vocabtrim_core.backbones import Backbone, TransformersBackbone
from vocabtrim_core.errors import ModelError
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.lean import LeanBackbone, LeanBody, NotCoveredError

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

    _body: PreTrainedModel
    _lean: LeanBody | None

    def new_backbone(self, taps: tuple[int, ...] = (), fixed_rows: int | None = None) -> Backbone:
        """The body with an empty cache. See `LeanBackbone` for `fixed_rows`: only the lean engine offers it."""
        if self._lean is not None:
            return LeanBackbone(self._lean, taps, fixed_rows)
        if fixed_rows is not None:
            raise ModelError(
                f"{type(self._body).__name__} runs through transformers ({self.reason}), which cannot compute a fixed "
                "number of rows. Compare its texts without, in float32."
            )
        return TransformersBackbone(self._body, taps)


def choose_engine(body: PreTrainedModel, head: RankedHead) -> Engine:
    """The lean engine if it covers `body` and gives the same logits, else `transformers` with the reason."""
    # Transformers computes float16 slowly on a CPU, so there the body is float32.
    wide = ", and computes in float32 with weights rounded to float16" if head.weight.dtype == torch.float16 else ""
    try:
        lean = LeanBody(body, head.weight.dtype)
    except NotCoveredError as error:
        return Engine("transformers", f"{error}{wide}", body, None)
    difference = _difference(body, lean, head)
    tolerance = _TOLERANCE.get(head.weight.dtype, 0.0)
    if not difference <= tolerance:
        reason = f"the lean engine's logits differ by {difference:.1g} of the largest, of {tolerance:.1g} allowed"
        reason += wide
        return Engine("transformers", reason, body, None)
    return Engine("lean", f"its logits agree with transformers' within {difference:.1g} of the largest", body, lean)


@torch.inference_mode()
def _difference(body: PreTrainedModel, lean: LeanBody, head: RankedHead) -> float:
    """The mean difference of the logits over a text, of the largest: of whole passes, short ones and single tokens."""
    step = max(1, head.vocab_size // _CHECKED_TOKENS)
    ids = torch.arange(_CHECKED_TOKENS).mul(step).remainder(head.vocab_size)
    parts = ids.split([12, 1, 1, 5, 5])
    ours, theirs = LeanBackbone(lean), TransformersBackbone(body)
    found = head.logits(torch.cat([ours.run(part) for part in parts])).float()  # [n, V]
    expected = head.logits(theirs.run(ids)).float()
    return float((found - expected).abs().mean() / expected.abs().max().clamp(min=1e-6))
