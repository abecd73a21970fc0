"""Is the predicted optimum the real one? Tune on prompts, then time every point of a grid on the same prompts.

    python benchmarks/tuning.py [--prompts FILE.jsonl] [--limit 8] [--k 512,2048,8192,full] [--gamma 1,2,3] [--json OUT]

All points are interleaved, prompt by prompt in rotating order. Prints predicted and measured speedup against vanilla of
each point, the largest error, and what the recommended point loses against the best one measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vocabtrim_core.commands import decoding
from vocabtrim_core.commands.tasks import in_tokens
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.defaults import DTYPES
from vocabtrim_core.evaluation.comparison import Contest
from vocabtrim_core.evaluation.measuring import VANILLA, measure
from vocabtrim_core.evaluation.trace import kept_trace
from vocabtrim_core.evaluation.tuning import recommend, tune
from vocabtrim_core.models import load_pair
from vocabtrim_core.prompts import read_prompts
from vocabtrim_core.shipped import shipped_counts_path

PROMPTS = Path(__file__).resolve().parent.parent / "data" / "prompts.jsonl"


def show(share: float, message: str) -> None:
    print(f"{share:4.0%} {message}", file=sys.stderr)


def main(arguments: argparse.Namespace) -> None:
    pair = load_pair(drafter=arguments.drafter, dtype=arguments.dtype)
    kept = decoding.trimming(pair, TokenCounts.load(shipped_counts_path()), None, None)
    assert kept is not None, "a drafter without a head has no k"
    ranking = kept.ranking
    gammas = [int(gamma) for gamma in arguments.gamma.split(",")]
    ks = [ranking.vocab_size if k == "full" else int(k) for k in arguments.k.split(",")]
    stop = StopCondition(frozenset(pair.target.eos_ids))
    contest = Contest(pair, kept.head, kept.k, GenerationSettings(max(gammas), arguments.max_new_tokens), stop)
    prompts = in_tokens(read_prompts(arguments.prompts, arguments.limit), pair.tokenizer)
    trace = kept_trace(None, pair, prompts, contest.settings, stop, show)
    tuned = tune(contest, ranking, trace, gammas, ks, pair.target.number_format, show)
    best = tuned.recommendation
    points = list(dict.fromkeys([*((k, gamma) for gamma in gammas for k in ks), (best.k, best.gamma)]))
    measured, _ = measure(contest, prompts, points, arguments.repeats, show)
    drafted = [one for one in measured if (one.k, one.gamma) != VANILLA]

    print("| k | gamma | tau, trace | tau, measured | predicted | measured | off by |\n|---|---|---|---|---|---|---|")
    errors = []
    for one in drafted:
        predicted = tuned.prediction.interval(one.k, one.gamma)
        tau = tuned.prediction.tau[tuned.prediction.at(one.k, one.gamma)]
        errors.append(predicted.median / one.speedup.median - 1)
        print(
            f"| {one.k:,} | {one.gamma} | {tau:.3f} | {one.tau:.3f} | {predicted.median:.3f} ({predicted.low:.3f}-"
            f"{predicted.high:.3f}) | {one.speedup.median:.3f} ({one.speedup.low:.3f}-{one.speedup.high:.3f}) | "
            f"{errors[-1]:+.1%} |"
        )
    speeds = {(one.k, one.gamma): one.speedup.median for one in drafted}
    loss = 1 - speeds[best.k, best.gamma] / max(speeds.values())
    share = tuned.seconds / trace.target_seconds
    print(f"\nLargest error: {max(map(abs, errors)):.1%}. Recommended: k = {best.k:,}, gamma = {best.gamma}.")
    print(f"It loses {loss:.1%} against the fastest point measured.")
    print(f"The curve cost {share:.2f} times one plain generation beyond that generation.")
    machine = asdict(tuned.profile.machine)
    print(
        f"{trace.tokens:,} tokens of {len(prompts)} prompts; {pair.target.number_format}, {machine['threads']} threads."
    )
    result = {
        "points": [asdict(one) for one in measured],
        "errors": errors,
        "loss": loss,
        "cost": share,
        "recommended": asdict(recommend(tuned.prediction)),
        "machine": machine,
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--k", default="512,2048,8192,full")
    parser.add_argument("--gamma", default="1,2,3")
    parser.add_argument("--drafter", default="independent")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=40)
    parser.add_argument("--dtype", default=DTYPES[0], choices=DTYPES)
    parser.add_argument("--json", type=Path)
    main(parser.parse_args())
