"""How fast the embedded pair decodes here: `transformers.generate`, our vanilla, untrimmed and trimmed, in one run.

    python benchmarks/speed.py [--prompts FILE.jsonl] [--k 4096,8192] [--gamma 2,3,4] [--json OUT.json]

All variants run on the same prompts, one after the other, prompt by prompt in rotating order, greedy. Speeds are tokens
per second over all prompts, the prompt's own pass included for the comparison with `transformers.generate` and left
out elsewhere; each figure is the median over the repeats with the smallest and the largest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.embedded import embedded_target_folder
from vocabtrim_core.evaluation.comparison import Contest, Method, Run
from vocabtrim_core.evaluation.machine import this_machine
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.models import DTYPES, load_pair
from vocabtrim_core.prompts import read_prompts
from vocabtrim_core.shipped import shipped_counts_path
from vocabtrim_core.vocabulary import forced_token_ids, rank_tokens

PROMPTS = Path(__file__).resolve().parent.parent / "data" / "prompts.jsonl"


@dataclass(frozen=True)
class Timing:
    """One prompt decoded once: tokens emitted, target passes, seconds with and without the prompt's pass."""

    tokens: int
    passes: int
    seconds: float
    decode_seconds: float


Variant = Callable[[list[int]], Timing]


def ours(contest: Contest, method: Method) -> Variant:
    def decode(prompt_ids: list[int]) -> Timing:
        began = time.perf_counter()
        run = Run(tuple(contest.cycles(method, prompt_ids)))
        return Timing(len(run.token_ids), len(run.cycles), time.perf_counter() - began, run.seconds)

    return decode


def theirs(dtype: str, max_new_tokens: int) -> Variant:
    model = AutoModelForCausalLM.from_pretrained(embedded_target_folder(), dtype=DTYPES[dtype]).eval()

    def decode(prompt_ids: list[int]) -> Timing:
        ids = torch.tensor([prompt_ids])
        mask = torch.ones_like(ids)
        began = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False)
        seconds = time.perf_counter() - began
        tokens = output.shape[1] - len(prompt_ids)
        return Timing(tokens, tokens, seconds, seconds)

    return decode


def play(variants: dict[str, Variant], prompts: list[list[int]], repeats: int) -> dict[str, list[list[Timing]]]:
    """Timings by variant, repeat and prompt."""
    names = list(variants)
    for name in names:
        variants[name](prompts[0])
    timings: dict[str, list[list[Timing]]] = {name: [[] for _ in range(repeats)] for name in names}
    for repeat in range(repeats):
        for number, prompt_ids in enumerate(prompts):
            start = (repeat + number) % len(names)
            for name in names[start:] + names[:start]:
                timings[name][repeat].append(variants[name](prompt_ids))
            print(f"repeat {repeat + 1}, prompt {number + 1} of {len(prompts)}", file=sys.stderr)
    return timings


def ratio(
    timings: dict[str, list[list[Timing]]], variant: str, over: str, seconds: Callable[[Timing], float]
) -> Spread:
    """Speed of `variant` over that of `over`, by repeat."""

    def speed(name: str, repeat: int) -> float:
        rows = timings[name][repeat]
        return sum(row.tokens for row in rows) / sum(seconds(row) for row in rows)

    repeats = range(len(timings[variant]))
    return Spread.of([speed(variant, repeat) / speed(over, repeat) for repeat in repeats])


def whole(timing: Timing) -> float:
    return timing.seconds


def decoding(timing: Timing) -> float:
    return timing.decode_seconds


def cell(spread: Spread, unit: str = "x") -> str:
    return f"{spread.median:.2f}{unit} ({spread.low:.2f}-{spread.high:.2f})"


def main(arguments: argparse.Namespace) -> None:
    pair = load_pair(dtype=arguments.dtype)
    counts = TokenCounts.load(shipped_counts_path())
    forced = forced_token_ids(pair.tokenizer, pair.target.eos_ids)
    ranking = rank_tokens(counts.calibration, forced, "shipped", pair.usable_vocab_size)
    assert pair.drafter.head is not None
    head = pair.drafter.head.reordered(torch.from_numpy(ranking.ids))
    stop = StopCondition(frozenset(pair.target.eos_ids))
    prompts = [pair.tokenizer.encode_prompt(prompt.text) for prompt in read_prompts(arguments.prompts, arguments.limit)]

    variants: dict[str, Variant] = {"transformers.generate": theirs(arguments.dtype, arguments.max_new_tokens)}
    sizes = [int(k) for k in arguments.k.split(",")]
    gammas = [int(gamma) for gamma in arguments.gamma.split(",")]
    for gamma in gammas:
        settings = GenerationSettings(gamma, arguments.max_new_tokens)
        contests = {k: Contest(pair, head, k, settings, stop) for k in sizes}
        variants["vanilla"] = ours(contests[sizes[0]], "vanilla")
        variants[f"untrimmed, gamma {gamma}"] = ours(contests[sizes[0]], "untrimmed")
        for k in sizes:
            variants[f"k = {k:,}, gamma {gamma}"] = ours(contests[k], "trimmed")

    timings = play(variants, prompts, arguments.repeats)
    rows = {}
    print("| variant | tok/s | tokens a pass | vs vanilla | vs untrimmed |\n|---|---|---|---|---|")
    for name, repeats in timings.items():
        clock = whole if name == "transformers.generate" else decoding
        speed = Spread.of([sum(t.tokens for t in row) / sum(clock(t) for t in row) for row in repeats])
        every = [timing for row in repeats for timing in row]
        length = sum(t.tokens for t in every) / sum(t.passes for t in every)
        vanilla = ratio(timings, name, "vanilla", whole if name == "transformers.generate" else decoding)
        gamma = name.rpartition("gamma ")[2]
        full = ratio(timings, name, f"untrimmed, gamma {gamma}", decoding) if name.startswith("k = ") else None
        print(f"| {name} | {cell(speed, '')} | {length:.2f} | {cell(vanilla)} | {cell(full) if full else ''} |")
        rows[name] = {"tokens_per_second": asdict(speed), "tokens_per_pass": length, "vs_vanilla": asdict(vanilla)}
        if full:
            rows[name]["vs_untrimmed"] = asdict(full)
    against = ratio(timings, "vanilla", "transformers.generate", whole)
    machine = this_machine()
    print(f"\nOur vanilla against transformers.generate, prompt included: {cell(against)}.")
    print(
        f"{len(prompts)} prompts, {arguments.max_new_tokens} new tokens at most, {arguments.repeats} repeats, "
        f"{arguments.dtype}, {machine.threads} threads of {machine.cpu}."
    )
    result = {"rows": rows, "vanilla_vs_generate": asdict(against), "machine": asdict(machine), **vars(arguments)}
    print(json.dumps(result, default=str))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, default=str, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--k", default="4096")
    parser.add_argument("--gamma", default="3")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16", choices=list(DTYPES))
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
