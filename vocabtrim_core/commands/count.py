"""`count`: the tokens of a corpus."""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from vocabtrim_core.commands.loading import check_out, open_tokenizer
from vocabtrim_core.corpora import BadRecord, LeftOut, ReadingOptions, plan_shards
from vocabtrim_core.counting import TokenCounts, check_holdout, run_count
from vocabtrim_core.counting.ledger import sentences, summary, together
from vocabtrim_core.errors import CorpusError, SettingError
from vocabtrim_core.progress import Progress
from vocabtrim_core.sentences import visible

MAX_FILE_LINES = 20


def run(arguments: Namespace, report: Progress) -> dict:
    """Count the corpus and save the counts where that was asked for. The speed is that of what was not resumed."""
    check_out(arguments.out, ".npz", "Counts are")
    check_holdout(arguments.holdout)
    if arguments.ray_address and arguments.engine != "ray":
        raise SettingError("--ray-address is of use with --engine ray only.")
    options = ReadingOptions(
        field=arguments.field,
        roles=arguments.roles,
        newlines=arguments.newlines,
        encoding=arguments.encoding,
        token_dtype=arguments.token_dtype,
    )
    planned: list[LeftOut] = []
    shards = plan_shards(arguments.sources, options, on_left_out=planned.append)
    tokenizer = open_tokenizer(arguments.tokenizer, report)
    began = time.perf_counter()
    done = run_count(
        shards,
        tokenizer,
        options,
        arguments.holdout,
        arguments.engine,
        arguments.resume,
        report,
        arguments.ray_address,
        planned,
    )
    seconds = time.perf_counter() - began
    counts = done.counts
    problems = [each.sentence for each in counts.left_out if each.serious]
    out = None
    if arguments.out:
        try:
            counts.save(arguments.out)
            out = arguments.out
        except CorpusError as error:
            out, problem = _saved_elsewhere(counts, error)
            problems.append(problem)
    return {
        "tokens": counts.tokens,
        "documents": counts.documents,
        "distinct": counts.distinct,
        "vocab_size": counts.vocab_size,
        "tokens_per_second": done.counted_tokens / seconds,
        "seconds": seconds,
        "engine": arguments.engine,
        "encoder": done.encoder,
        "parts": done.shards,
        "resumed_parts": done.resumed_shards,
        "holdout": counts.holdout,
        "held_out_tokens": int(counts.held_out.sum()),
        "held_out_documents": counts.held_out_documents,
        "bad_records": counts.bad_record_count,
        "first_bad_records": [asdict(record) for record in counts.bad_records],
        "left_out": [asdict(each) for each in counts.left_out],
        "left_out_files": counts.left_out_count,
        "problems": problems,
        "warnings": sorted({shard.warning for shard in shards if shard.warning}),
        "reconciliation": {"together": together(counts.ledger), "files": summary(counts.ledger)},
        "notes": list(done.notes),
        "files": [asdict(file) for file in counts.files],
        "tokenizer": {"name": counts.tokenizer_name, "fingerprint": counts.tokenizer_fingerprint},
        "out": str(out) if out else None,
    }


def _saved_elsewhere(counts: TokenCounts, error: CorpusError) -> tuple[Path | None, str]:
    """Where counts are that could not be saved where they should be, and the sentence that says so."""
    try:
        path = Path(tempfile.mkdtemp(prefix="vocabtrim-")) / "counts.npz"
        counts.save(path)
    except (OSError, CorpusError):
        return None, f"{error} There was no room elsewhere either, so the counts are printed only."
    return path, f"{error} The counts are in {path} instead."


def describe(result: dict) -> str:
    """The totals, a line a file (of the largest), and what was skipped."""
    largest = sorted(result["files"], key=lambda file: -file["tokens"])[:MAX_FILE_LINES]
    lines = [
        f"{result['tokens']:,} tokens in {result['documents']:,} documents, counted with {result['tokenizer']['name']} "
        f"at {result['tokens_per_second']:,.0f} tokens per second ({result['encoder']}).",
        f"{result['distinct']:,} of {result['vocab_size']:,} tokens of the vocabulary occur.",
        f"Held out: {result['held_out_tokens']:,} tokens in {result['held_out_documents']:,} documents.",
    ]
    if result["resumed_parts"]:
        lines.append(f"{result['resumed_parts']:,} of {result['parts']:,} parts had been counted before.")
    lines += [
        "",
        *(f"  {visible(file['name'])}: {file['tokens']:,} tokens, {file['documents']:,} documents" for file in largest),
    ]
    if len(result["files"]) > len(largest):
        lines.append(f"  and {len(result['files']) - len(largest):,} files more")
    lines += ["", *sentences(result["reconciliation"]["together"])]
    by_file = result["reconciliation"]["files"]
    if len(by_file) > 1:
        uneven = [name for name, items in by_file.items() if any(item["left_out"] for item in items.values())]
        for name in uneven[:MAX_FILE_LINES]:
            lines += [f"  {visible(name)}: {sentence}" for sentence in sentences(by_file[name])]
        if len(uneven) > MAX_FILE_LINES:
            lines.append(f"  and {len(uneven) - MAX_FILE_LINES:,} files more of which something was left out")
    if result["bad_records"]:
        lines += ["", f"Records skipped: {result['bad_records']:,}."]
        lines += [f"  {visible(BadRecord(**bad).where)}: {bad['reason']}" for bad in result["first_bad_records"]]
        if result["bad_records"] > len(result["first_bad_records"]):
            lines.append("  ...")
    lines += [f"\nNote: {warning}" for warning in [*result["warnings"], *result["notes"]]]
    if result["left_out"]:
        lines += ["", f"Files left out, whole or in part: {result['left_out_files']:,}."]
        shown = [LeftOut(**each) for each in result["left_out"][:MAX_FILE_LINES]]
        lines += [f"  {each.sentence if each.serious else each.reason}" for each in shown]
        if result["left_out_files"] > len(shown):
            lines.append("  ...")
    if result["out"]:
        lines += ["", f"Saved to {result['out']}."]
    return "\n".join(lines)
