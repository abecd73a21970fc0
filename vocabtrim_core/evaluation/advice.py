"""A recommendation in words, for the page, the report and the command alike: never more than what was found."""

from __future__ import annotations

from collections.abc import Sequence

from vocabtrim_core.evaluation.measuring import Measured
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.evaluation.tuning import FEW_PROMPTS, FEW_TOKENS, Recommendation

RULE = (
    "The recommended k is the largest that is as good as the fastest within the uncertainty of both, because a larger "
    "k also keeps tokens that these prompts happen not to need."
)


def advice(best: Recommendation) -> tuple[str, dict[str, str]]:
    """A sentence with named gaps, and the figures that fill them."""
    gain = best.speedup.low > 1
    if not best.speculate:
        text = "Do not speculate on this machine: the best point, k = {k} with gamma = {gamma}, would have {speed}."
    elif best.trim:
        text = "Ship" if gain else "Try"
        text += " k = {k} with gamma = {gamma}: {speed}, {over}; it keeps {kept} of the acceptance length."
    else:
        text = "Do not trim: " + ("speculate" if gain else "if you speculate, do so")
        text += " with the full vocabulary and gamma = {gamma}, {speed}. The best trimmed k, {other}, would have {over}"
        text += ", which is within the uncertainty."
    if best.speculate and not gain:
        text += " A gain over vanilla is likely, but not beyond doubt: measure it."
    if best.speculate and best.plateau[0] < best.plateau[1]:
        text += " Any k from {low} to {high} is at most 1% slower."
    if best.thin:
        text += f" Too little evidence: use at least {FEW_PROMPTS} prompts and {FEW_TOKENS} tokens of answers."
    figures = {
        "k": f"{best.k:,}",
        "gamma": str(best.gamma),
        "speed": f"{times(best.speedup)} vanilla's speed",
        "over": f"{times(best.over_untrimmed)} the full vocabulary's",
        "kept": f"{best.retained:.1%}",
        "other": f"{best.best_trimmed_k:,}",
        "low": f"{best.plateau[0]:,}",
        "high": f"{best.plateau[1]:,}",
    }
    return text, figures


def in_words(best: Recommendation) -> str:
    """The whole sentence."""
    text, figures = advice(best)
    return text.format(**figures)


def against_measurement(best: Recommendation, measured: Sequence[Measured], full: int) -> str:
    """What runs say about the recommendation: nothing without one of its point. `full` is the whole vocabulary."""
    own = next((one for one in measured if (one.k, one.gamma) == (best.k, best.gamma)), None)
    if own is None:
        return ""
    text = f"Measured at this point: {times(own.speedup)} vanilla's speed."
    if own.speedup.median <= 1:
        text += " So it is no gain here: do not speculate with it."
    elif own.speedup.low <= 1:
        text += " Not every repeat was faster than vanilla."
    fastest = max((one for one in measured if one.gamma), key=lambda one: one.speedup.median)
    if fastest is not own and fastest.speedup.median > own.speedup.median:
        name = "the full vocabulary" if fastest.k == full else f"k = {fastest.k:,}"
        apart = fastest.speedup.low > own.speedup.high
        text += f" The fastest point measured is {name} at gamma = {fastest.gamma}: {times(fastest.speedup)}"
        text += ", faster in every repeat." if apart else ", which the repeats do not tell apart."
    return text


def times(speed: Spread) -> str:
    """A speedup with its interval."""
    return f"{speed.median:.2f} times ({speed.low:.2f} to {speed.high:.2f})"
