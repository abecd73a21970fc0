"""A drafter whose context is shorter than the target's: where drafting ends, and the sentence that says so.

Drafting ends, not the text: beyond the drafter's context the target decodes alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from vocabtrim_core.drafters import DrafterModel


def draftable_tokens(drafter_context: int, prompt_tokens: int, room: int) -> int:
    """How many of an output's at most `room` tokens a drafter may propose, from the first one on.

    Not the last one, since a cycle emits one token more than it drafts; none beyond the drafter's context.
    """
    return max(0, min(room - 1, drafter_context - prompt_tokens))


def context_notes(drafter: DrafterModel, texts: Iterable[tuple[int, int]]) -> list[str]:
    """Where drafting stopped before its texts did, in a sentence; none where it never did.

    `texts` are pairs of numbers of tokens: of the prompt, and of the output after it.
    """
    lengths, context = list(texts), drafter.max_length
    beyond = sum(prompt + output > context for prompt, output in lengths)
    undrafted = sum(prompt >= context for prompt, _ in lengths)
    if not beyond:
        return []
    holds = f"The context of the drafter {drafter.name} holds {context:,} tokens"
    if len(lengths) == 1 and undrafted:
        return [f"{holds} and the prompt fills it, so nothing was drafted: the target wrote alone."]
    if len(lengths) == 1:
        return [f"{holds}: drafting stopped there, and the target went on alone."]
    early = f", in {undrafted:,} of them from the first token on" if undrafted else ""
    return [f"{holds}: in {beyond:,} of {len(lengths):,} texts the target went on alone from there{early}."]
