"""The drafter's hidden states along a text that it did not write, by its depth in the draft. One function a kind."""

from __future__ import annotations

import torch

from vocabtrim_core.models import ModelPair


@torch.inference_mode()
def drafter_states(pair: ModelPair, prompt_ids: torch.Tensor, output_ids: torch.Tensor, depth: int) -> torch.Tensor:
    """[D, L, H] for int64[n] prompt and int64[L] output: row [d, t] is the state from which the drafter, d tokens into
    its draft, proposes output token t, where the draft so far is the output. D is 1 where the depth does not matter,
    else `depth`; rows with d > t mean nothing.
    """
    return _independent(pair, prompt_ids, output_ids)


def _independent(pair: ModelPair, prompt_ids: torch.Tensor, output_ids: torch.Tensor) -> torch.Tensor:
    """A language model sees tokens only, so one pass gives the states of every depth."""
    ids = torch.cat([prompt_ids, output_ids[:-1]])
    hidden = pair.drafter.new_backbone().run(ids)  # [n + L - 1, H]
    return hidden[len(prompt_ids) - 1 :][None].clone()
