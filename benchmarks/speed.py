"""How fast the embedded target decodes here: `transformers`, plain and assisted, against our vanilla and drafters.

    python benchmarks/speed.py [--drafters independent,eagle,medusa] [--gamma 2,3,4] [--tree D,B,N]... [--k 4096,8192]
        [--prompts FILE.jsonl] [--json OUT.json]

All variants run on the same prompts, one after the other, prompt by prompt in rotating order, greedy. The assisted
generation of `transformers` has the same independent drafter and the same draft length, and no confidence threshold.
Speeds are tokens per second over all prompts, with the prompt's own pass included for whatever is compared with
`transformers` and left out elsewhere; each figure is the median over the repeats with the smallest and the largest.
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
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.defaults import DTYPES
from vocabtrim_core.drafters.independent import IndependentModel
from vocabtrim_core.evaluation.comparison import Contest, Method, Run
from vocabtrim_core.evaluation.machine import this_machine
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.models import ModelPair, load_drafter, load_target
from vocabtrim_core.prompts import read_prompts
from vocabtrim_core.shipped import shipped_counts_path
from vocabtrim_core.trees import DraftShape
from vocabtrim_core.vocabulary import forced_token_ids, rank_tokens, ranking_among

PROMPTS = Path(__file__).resolve().parent.parent / "data" / "prompts.jsonl"
GENERATE, VANILLA = "transformers.generate", "vanilla"


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


def plain_model(model: LanguageModel) -> PreTrainedModel:
    """`model` put together again as `transformers` runs it, with its weights; for float16 in float32."""
    config = model.body.config
    with torch.device("meta"):
        whole = AutoModelForCausalLM.from_config(config)
        head = torch.nn.Linear(model.hidden_size, model.vocab_size, bias=model.head.bias is not None)
    head.weight = torch.nn.Parameter(model.head.weight.to(model.body.dtype), requires_grad=False)
    if model.head.bias is not None:
        head.bias = torch.nn.Parameter(model.head.bias, requires_grad=False)
    setattr(whole, whole.base_model_prefix, model.body)
    whole.set_output_embeddings(head)
    return whole.eval()


def theirs(
    model: PreTrainedModel,
    eos_ids: tuple[int, ...],
    longest: int,
    drafter: PreTrainedModel | None = None,
    gamma: int = 0,
) -> Variant:
    """`transformers.generate`; with a drafter, its assisted generation with chains of `gamma` tokens."""
    options = GenerationConfig(
        max_new_tokens=longest, do_sample=False, eos_token_id=list(eos_ids), pad_token_id=eos_ids[0]
    )
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    model.register_forward_hook(count)

    def decode(prompt_ids: list[int]) -> Timing:
        nonlocal passes
        passes = 0
        if drafter is not None:
            drafter.generation_config = GenerationConfig(
                num_assistant_tokens=gamma, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
            )
        ids = torch.tensor([prompt_ids])
        mask = torch.ones_like(ids)
        began = time.perf_counter()
        with torch.inference_mode():
            output = model.generate(ids, attention_mask=mask, generation_config=options, assistant_model=drafter)
        seconds = time.perf_counter() - began
        return Timing(output.shape[1] - len(prompt_ids), passes, seconds, seconds)

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


@dataclass(frozen=True)
class Row:
    """A variant, and which others it is set against."""

    name: str
    decode: Variant
    full: str | None = None  # the same drafter and shape with the whole vocabulary
    assisted: str | None = None  # transformers' with the same drafter and draft length


def named(shape: DraftShape) -> str:
    return f"gamma {shape.depth}" if shape.is_chain else f"tree {shape.depth},{shape.branches},{shape.nodes}"


def tree(text: str) -> DraftShape:
    depth, branches, nodes = map(int, text.split(","))
    return DraftShape(depth, branches, nodes)


def rows_of(arguments: argparse.Namespace) -> tuple[list[Row], ModelPair]:
    """Every variant; and a pair, for its target and tokenizer."""
    target, tokenizer = load_target(dtype=arguments.dtype)
    stop = StopCondition(frozenset(target.eos_ids))
    forced = forced_token_ids(tokenizer, target.eos_ids)
    counts = TokenCounts.load(shipped_counts_path())
    shapes = [DraftShape(int(gamma)) for gamma in arguments.gamma.split(",") if gamma] + arguments.tree
    longest = arguments.max_new_tokens
    whole = plain_model(target)
    rows = [Row(GENERATE, theirs(whole, target.eos_ids, longest))]
    for source in arguments.drafters.split(","):
        pair = ModelPair(target, load_drafter(source, target, tokenizer), tokenizer)
        kind, head, sizes = pair.drafter.kind, pair.drafter.head, []
        if head is not None:
            every = rank_tokens(counts.calibration, forced, "shipped", pair.usable_vocab_size)
            ranking = ranking_among(every, head.ranking.numpy())
            head = head.reordered(torch.from_numpy(ranking.ids))
            sizes = [int(k) for k in arguments.k.split(",")]
        if len(rows) == 1:
            alone = Contest(pair, head, None, GenerationSettings(max_new_tokens=longest), stop)
            rows.append(Row(VANILLA, ours(alone, "vanilla")))
        assistant = None
        # Of another size, transformers takes the drafter for one with another tokenizer.
        if isinstance(pair.drafter, IndependentModel) and pair.drafter.vocab_size == target.vocab_size:
            assistant = plain_model(pair.drafter.model)
        for shape in shapes:
            assisted = None
            if assistant is not None and shape.is_chain:
                assisted = f"transformers assisted, {named(shape)}"
                rows.append(Row(assisted, theirs(whole, target.eos_ids, longest, assistant, shape.depth)))
            settings = GenerationSettings(max_new_tokens=longest, tree=shape)
            full = f"{kind}, {named(shape)}, full"
            rows.append(Row(full, ours(Contest(pair, head, None, settings, stop), "untrimmed"), None, assisted))
            for k in sizes:
                trimmed = ours(Contest(pair, head, k, settings, stop), "trimmed")
                rows.append(Row(f"{kind}, {named(shape)}, k = {k:,}", trimmed, full, assisted))
    return rows, pair


def main(arguments: argparse.Namespace) -> None:
    rows, pair = rows_of(arguments)
    prompts = [pair.tokenizer.encode_prompt(prompt.text) for prompt in read_prompts(arguments.prompts, arguments.limit)]
    timings = play({row.name: row.decode for row in rows}, prompts, arguments.repeats)
    machine = this_machine()
    common = {
        "target": pair.target.name,
        "engine": pair.target.engine.name,
        "prompts": len(prompts),
        "repeats": arguments.repeats,
        "max_new_tokens": arguments.max_new_tokens,
        "dtype": pair.target.number_format,
        "machine": asdict(machine),
    }
    lines = []
    print("| variant | tok/s | tokens a pass | vs generate | vs vanilla | vs full | vs assisted |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        is_ours = not row.name.startswith("transformers")
        repeats = timings[row.name]
        clock = decoding if is_ours else whole
        speed = Spread.of([sum(t.tokens for t in one) / sum(clock(t) for t in one) for one in repeats])
        every = [timing for one in repeats for timing in one]
        length = sum(t.tokens for t in every) / sum(t.passes for t in every)
        against = {
            "vs_generate": ratio(timings, row.name, GENERATE, whole),
            "vs_vanilla": ratio(timings, row.name, VANILLA, clock),
            "vs_full": ratio(timings, row.name, row.full, decoding) if row.full else None,
            "vs_assisted": ratio(timings, row.name, row.assisted, whole) if row.assisted else None,
        }
        cells = " | ".join(cell(one) if one else "" for one in against.values())
        print(f"| {row.name} | {cell(speed, '')} | {length:.2f} | {cells} |")
        figures = {name: asdict(one) if one else None for name, one in against.items()}
        lines.append(
            {"variant": row.name, "tokens_per_second": asdict(speed), "tokens_per_pass": length, **figures, **common}
        )
    print(
        f"\n{len(prompts)} prompts, {arguments.max_new_tokens} new tokens at most, {arguments.repeats} repeats, "
        f"{pair.target.number_format}, {machine.threads} threads of {machine.cpu} "
        f"({', '.join(machine.features)}). The target runs on the {pair.target.engine.name} engine.\n"
    )
    for line in lines:
        print(json.dumps(line))
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drafters", default="independent", help="kinds, folders or hub ids, with commas")
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--k", default="4096")
    parser.add_argument("--gamma", default="3", help="chains; empty for none")
    parser.add_argument("--tree", type=tree, action="append", default=[], metavar="DEPTH,TOP_K,NODES")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default=DTYPES[0], choices=DTYPES)
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
