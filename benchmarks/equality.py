"""Whether speculative decoding gives the target's own text: greedy, over many prompts, k and draft shapes.

    python benchmarks/equality.py [--drafter independent] [--prompts FILE.jsonl] [--dtype float32] [--fixed-rows N]
        [--ks 17,512,4096,49152] [--gammas 1,3,8] [--tree D,B,N]... [--max-new-tokens 64] [--limit N] [--json OUT.json]

Each prompt is decoded once without a drafter, then once for every k and every shape: chains of each gamma, and each
tree (depth, top-k, nodes). In bfloat16 and float16 every target pass computes a fixed number of rows (what the largest
draft needs, or --fixed-rows; 0 for as many as there are), with which a token's logits have the same bits in a draft and
alone. Where an output differs, its first difference is listed with the target's logit margin there: what is left within
float error is a near tie. Results so far are written to OUT.json after every prompt.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.defaults import DTYPES
from vocabtrim_core.evaluation.comparison import Contest, Run, logit_margin
from vocabtrim_core.evaluation.fixed_rows import fixed_rows
from vocabtrim_core.evaluation.machine import this_machine
from vocabtrim_core.models import ModelPair, load_pair
from vocabtrim_core.prompts import read_prompts
from vocabtrim_core.shipped import shipped_counts_path
from vocabtrim_core.trees import DraftShape
from vocabtrim_core.vocabulary import check_k, forced_token_ids, rank_tokens, ranking_among

PROMPTS = Path(__file__).resolve().parent.parent / "data" / "prompts.jsonl"


def named(shape: DraftShape) -> str:
    return f"gamma {shape.depth}" if shape.is_chain else f"tree {shape.depth},{shape.branches},{shape.nodes}"


def tree(text: str) -> DraftShape:
    depth, branches, nodes = map(int, text.split(","))
    return DraftShape(depth, branches, nodes)


def first_difference(pair: ModelPair, prompt_ids: list[int], expected: Sequence[int], found: Sequence[int]) -> dict:
    """Where two outputs part, both tokens (None after an end), and the target's margin for the expected one."""
    pairs = itertools.zip_longest(expected, found)
    position, (ours, theirs) = next((i, both) for i, both in enumerate(pairs) if both[0] != both[1])
    margin = None
    if ours is not None and theirs is not None:
        margin = logit_margin(pair.target, [*prompt_ids, *found[:position]], ours, theirs)
    return {"position": position, "vanilla_id": ours, "other_id": theirs, "logit_margin": margin}


def write(path: Path, result: dict) -> None:
    """Replace the file in one step, so that a run that is stopped leaves the results so far."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")
    unfinished.replace(path)


def main(arguments: argparse.Namespace) -> None:
    pair = load_pair(drafter=arguments.drafter, dtype=arguments.dtype)
    counts = TokenCounts.load(shipped_counts_path())
    forced = forced_token_ids(pair.tokenizer, pair.target.eos_ids)
    ranking = rank_tokens(counts.calibration, forced, "shipped", pair.usable_vocab_size)
    head = pair.drafter.head
    ks: list[int | None] = [None]  # a drafter without a head
    if head is not None:
        ranking = ranking_among(ranking, head.ranking.numpy())
        head = head.reordered(torch.from_numpy(ranking.ids))
        ks = [check_k(ranking, min(int(k), ranking.vocab_size)) for k in arguments.ks.split(",")]
    shapes = [DraftShape(int(gamma)) for gamma in arguments.gammas.split(",") if gamma] + arguments.tree
    rows_computed = arguments.fixed_rows
    if rows_computed is None and pair.target.dtype != torch.float32:
        rows_computed = fixed_rows(pair.target, max(shape.most_nodes for shape in shapes) + 1)
    plain = GenerationSettings(max_new_tokens=arguments.max_new_tokens, fixed_rows=rows_computed or None)
    vanilla = Contest(pair, head, None, plain, StopCondition(frozenset(pair.target.eos_ids)))
    prompts = read_prompts(arguments.prompts, arguments.limit)

    rows = {
        (k, shape): {"k": k, "shape": named(shape), "runs": 0, "identical": 0, "tokens": 0, "target_passes": 0}
        for k in ks
        for shape in shapes
    }
    differences: list[dict] = []
    result = {
        "arguments": vars(arguments),
        "machine": asdict(this_machine()),
        "target": pair.target.name,
        "drafter": pair.drafter.name,
        "engine": pair.target.engine.name,
        "fixed_rows": rows_computed or None,
        "prompts": 0,
        "runs": 0,
        "identical": 0,
        "settings": list(rows.values()),
        "differences": differences,
    }
    for number, prompt in enumerate(prompts):
        prompt_ids = pair.tokenizer.encode_prompt(prompt.text)
        expected = Run(tuple(vanilla.cycles("vanilla", prompt_ids))).token_ids
        for (k, shape), row in rows.items():
            contest = replace(vanilla, k=k, settings=replace(plain, tree=shape))
            run = Run(tuple(contest.cycles("untrimmed" if k is None else "trimmed", prompt_ids)))
            found = run.token_ids
            row["runs"] += 1
            row["tokens"] += len(found)
            row["target_passes"] += len(run.cycles)
            if found == expected:
                row["identical"] += 1
                continue
            difference = first_difference(pair, prompt_ids, expected, found)
            differences.append({"prompt": number, "where": prompt.where, "k": k, "shape": named(shape), **difference})
            print(f"prompt {number + 1}, k = {k}, {named(shape)}: {difference}", file=sys.stderr)
        result["prompts"] = number + 1
        result["runs"] = sum(row["runs"] for row in rows.values())
        result["identical"] = sum(row["identical"] for row in rows.values())
        same = f"{result['identical']} of {result['runs']} identical"
        print(f"prompt {number + 1} of {len(prompts)} ({len(expected)} tokens): {same}", file=sys.stderr, flush=True)
        if arguments.json:
            write(arguments.json, result)

    print("| k | draft | identical | tokens a pass |\n|---|---|---|---|")
    for row in rows.values():
        length = row["tokens"] / row["target_passes"]
        print(f"| {row['k'] or '-'} | {row['shape']} | {row['identical']} of {row['runs']} | {length:.2f} |")
    print(f"\n{result['identical']} of {result['runs']} outputs are identical in {pair.target.number_format}.")
    margins = [abs(d["logit_margin"]) for d in differences if d["logit_margin"] is not None]
    if margins:
        print(f"Where they part, the target's two logits are at most {max(margins):.3g} apart.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--ks", default="17,512,4096,49152")
    parser.add_argument("--gammas", default="1,3,8", help="chains; empty for none")
    parser.add_argument("--tree", type=tree, action="append", default=[], metavar="DEPTH,TOP_K,NODES")
    parser.add_argument("--drafter", default="independent", help="a kind, a folder or a hub id")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--fixed-rows", type=int)
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
