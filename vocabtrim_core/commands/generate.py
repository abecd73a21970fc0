"""`generate`: decode after one prompt, and what happened in every cycle."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from vocabtrim_core.commands import decoding, loading
from vocabtrim_core.decoding.context import context_notes
from vocabtrim_core.decoding.engine import generate
from vocabtrim_core.drafters import Drafter
from vocabtrim_core.evaluation.comparison import Run
from vocabtrim_core.models import load_pair, load_target
from vocabtrim_core.progress import Progress
from vocabtrim_core.prompts import typed_prompt


def run(arguments: Namespace, report: Progress) -> dict:
    """Decode with the target alone or with a trimmed drafter."""
    prompt = typed_prompt(arguments.prompt)
    settings = decoding.generation_settings(arguments)
    drafter: Drafter | None = None
    pair = trimming = None
    if arguments.method == "vanilla":
        target, tokenizer = load_target(arguments.target, arguments.dtype, report)
    else:
        counts = loading.open_counts(arguments.counts)
        pair = load_pair(arguments.target, arguments.drafter, arguments.dtype, on_progress=report)
        target, tokenizer = pair.target, pair.tokenizer
        trimming = decoding.trimming(pair, counts, arguments.counts, arguments.k)
        model = pair.drafter
        drafter = model.new_drafter(trimming.head, trimming.k) if trimming else model.new_drafter()
    stop = decoding.stop_condition(target, tokenizer, arguments)
    prompt_ids = tokenizer.encode_prompt(prompt.text)

    cycles = []
    tokens = 0
    for cycle in generate(target, drafter, prompt_ids, settings, stop):
        cycles.append(cycle)
        tokens += len(cycle.emitted_ids)
        report(tokens / settings.max_new_tokens, f"{tokens:,} tokens")
    done = Run(tuple(cycles))
    finish = cycles[-1].finish
    drafted = sum(cycle.depth for cycle in cycles)
    spoken = done.token_ids[:-1] if finish == "eos" else done.token_ids
    return {
        "token_ids": done.token_ids,
        "text": stop.trimmed(tokenizer.decode(spoken)),
        "finish": finish,
        "cycles": len(cycles),
        "acceptance_length": tokens / len(cycles),
        "acceptance_rate": sum(cycle.accepted for cycle in cycles) / drafted if drafted else None,
        "tokens_per_second": done.tokens_per_second,
        "prompt_tokens": len(prompt_ids),
        "prefill_seconds": cycles[0].times.prefill,
        "number_format_note": target.format_note,
        "settings": {
            "target": target.name,
            "drafter": None if pair is None else pair.drafter.name,
            "kind": None if pair is None else pair.drafter.kind,
            "method": arguments.method,
            "k": None if trimming is None else trimming.k,
            "gamma": None if drafter is None or settings.tree else settings.gamma,
            "tree": None if drafter is None or not settings.tree else asdict(settings.tree),
            "max_new_tokens": settings.max_new_tokens,
            "dtype": target.number_format,
            **asdict(settings.sampling),
        },
        "notes": context_notes(pair.drafter, [(len(prompt_ids), tokens)]) if pair else [],
        "events": [{**asdict(cycle), "accepted": cycle.accepted} for cycle in cycles],
    }


def describe(result: dict) -> str:
    """The text, then a line of figures."""
    rate = result["acceptance_rate"]
    tokens = len(result["token_ids"])
    figures = (
        f"{tokens:,} tokens in {result['cycles']:,} cycles at {result['tokens_per_second']:.1f} tokens per second; "
        f"acceptance length {result['acceptance_length']:.2f}"
    )
    figures += "" if rate is None else f", acceptance rate {rate:.1%}"
    ends = {"eos": "the model ended its answer", "stop string": "a stop string came", "length": "length limit reached"}
    notes = "".join(f"\n{note}" for note in result["notes"])
    return f"{result['text']}\n\n[{figures}; {ends[result['finish']]}]{notes}"
