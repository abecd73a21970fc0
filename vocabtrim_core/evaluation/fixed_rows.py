"""How many rows every pass is to compute, so that a token's bits do not depend on what is run beside it.

Kernels sum in an order that depends on how many rows they get, and some also on which of them a row is. Which numbers
of rows are safe is a matter of the processor's kernels and the layers' widths, so it is tried on the model itself.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from vocabtrim_core.language_model import LanguageModel

# Numbers of rows that are tried: fbgemm's unequal ones are never further apart.
_TRIED = 4
# Tokens before the rows: the cache's keys are read in blocks, of which the second begins in one of them.
_BEFORE = (3, 61)
_found: WeakKeyDictionary[LanguageModel, dict[int, int | None]] = WeakKeyDictionary()


def fixed_rows(target: LanguageModel, at_least: int) -> int | None:
    """The smallest number of rows from `at_least` on at which the bits of a token's states and logits are the same
    wherever in a pass it is. None where there is none near, or the engine cannot fix its rows."""
    if target.engine.name != "lean":
        return None
    known = _found.setdefault(target, {})
    if at_least not in known:
        tried = range(at_least, at_least + _TRIED)
        known[at_least] = next((rows for rows in tried if _are_equal(target, rows)), None)
    return known[at_least]


@torch.inference_mode()
def _are_equal(target: LanguageModel, rows: int) -> bool:
    """Whether tokens run together at so many rows have the bits that they have alone."""
    backbone = target.new_backbone(fixed_rows=rows)
    count = min(max(_BEFORE) + rows, target.max_length)
    ids = torch.arange(count).mul(max(1, target.vocab_size // count)).add(1).remainder(target.vocab_size)
    for before in _BEFORE:
        backbone.reset()
        text = ids[before : before + rows]
        backbone.run(ids[:before])
        together = backbone.run(text)
        logits = target.head.logits(together, rows=rows)
        backbone.rewind(len(text))
        for place in range(len(text)):
            alone = backbone.run(text[place : place + 1])
            row = slice(place, place + 1)
            if not torch.equal(alone, together[row]):
                return False
            if not torch.equal(target.head.logits(alone, rows=rows), logits[row]):
                return False
    return True
