"""`answer`: text that the target or the drafter writes, as a data set and as counts."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from vocabtrim_core.commands import decoding, loading
from vocabtrim_core.counting import check_holdout
from vocabtrim_core.errors import SettingError
from vocabtrim_core.generated import AnswerSettings, author, count_answers, write_answers
from vocabtrim_core.models import load_pair, load_target
from vocabtrim_core.progress import Progress
from vocabtrim_core.prompts import read_prompts


def run(arguments: Namespace, report: Progress) -> dict:
    """Write the answers that the data set lacks, and count all that were asked for where that was asked for too."""
    if arguments.limit is not None and arguments.limit < 1:
        raise SettingError(f"--limit is {arguments.limit}; choose 1 or more.")
    loading.check_out(arguments.out, ".jsonl", "Answers are")
    loading.check_out(arguments.counts_out, ".npz", "Counts are")
    check_holdout(arguments.holdout)
    settings = AnswerSettings(arguments.samples, arguments.max_new_tokens, decoding.sampling_settings(arguments))
    prompts = read_prompts(arguments.prompts, arguments.limit)
    if arguments.by == "target":
        model, tokenizer = load_target(arguments.target, arguments.dtype, report)
    else:
        pair = load_pair(arguments.target, arguments.drafter, arguments.dtype, on_progress=report)
        model, tokenizer = author(pair, "drafter"), pair.tokenizer
    written = write_answers(model, tokenizer, prompts, settings, arguments.out, arguments.batch, report)
    counts = count_answers(written.answers, tokenizer, arguments.holdout, arguments.out.name)
    if arguments.counts_out:
        counts.save(arguments.counts_out)
    return {
        "answers": len(written.answers),
        "tokens": counts.tokens,
        "distinct": counts.distinct,
        "vocab_size": counts.vocab_size,
        "ended_by_themselves": sum(answer.finish == "eos" for answer in written.answers),
        "added": written.added,
        "added_tokens": written.added_tokens,
        "seconds": written.seconds,
        "tokens_per_second": written.added_tokens / written.seconds if written.added else None,
        "held_out_tokens": int(counts.held_out.sum()),
        "held_out_documents": counts.held_out_documents,
        "out": str(arguments.out),
        "counts_out": str(arguments.counts_out) if arguments.counts_out else None,
        "number_format_note": model.format_note,
        "settings": {
            **asdict(written.answers[0].origin),
            "by": arguments.by,
            "samples": settings.samples,
            "batch": arguments.batch,
            "dtype": model.number_format,
            "holdout": arguments.holdout,
        },
    }


def describe(result: dict) -> str:
    """How much there is, how much of it is new, and where it is."""
    settings = result["settings"]
    lines = [
        f"{result['answers']:,} answers of the {settings['by']} ({settings['model_name']}), "
        f"{result['tokens']:,} tokens; {result['ended_by_themselves']:,} answers ended by themselves.",
        f"{result['distinct']:,} of {result['vocab_size']:,} tokens of the vocabulary occur.",
    ]
    if result["added"]:
        lines.append(
            f"Written now: {result['added']:,} answers, {result['added_tokens']:,} tokens at "
            f"{result['tokens_per_second']:,.1f} tokens per second."
        )
    else:
        lines.append("Nothing had to be written: the data set has them all.")
    lines += ["", f"Saved to {result['out']}."]
    if result["counts_out"]:
        lines.append(f"Counts saved to {result['counts_out']}.")
    return "\n".join(lines)
