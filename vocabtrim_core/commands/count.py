"""`count`: the tokens of text and chat files."""

from __future__ import annotations

import time
from argparse import Namespace
from dataclasses import asdict

from vocabtrim_core.commands.loading import check_out, open_tokenizer
from vocabtrim_core.corpora import read_file
from vocabtrim_core.counting import count_files
from vocabtrim_core.embedded import Progress


def run(arguments: Namespace, report: Progress) -> dict:
    """Count the files and save the counts where that was asked for."""
    check_out(arguments.out, ".npz", "Counts are")
    files = [read_file(path) for path in arguments.files]
    tokenizer = open_tokenizer(arguments.tokenizer, report)
    began = time.perf_counter()
    counts = count_files(files, tokenizer, arguments.holdout, report)
    seconds = time.perf_counter() - began
    if arguments.out:
        counts.save(arguments.out)
    return {
        "tokens": counts.tokens,
        "documents": counts.documents,
        "distinct": counts.distinct,
        "vocab_size": counts.vocab_size,
        "tokens_per_second": counts.tokens / seconds,
        "seconds": seconds,
        "holdout": counts.holdout,
        "held_out_tokens": int(counts.held_out.sum()),
        "held_out_documents": counts.held_out_documents,
        "bad_records": counts.bad_record_count,
        "first_bad_records": [asdict(record) for record in counts.bad_records],
        "files": [asdict(file) for file in counts.files],
        "tokenizer": {"name": counts.tokenizer_name, "fingerprint": counts.tokenizer_fingerprint},
        "out": str(arguments.out) if arguments.out else None,
    }


def describe(result: dict) -> str:
    """The totals, a line a file, and what was skipped."""
    lines = [
        f"{result['tokens']:,} tokens in {result['documents']:,} documents, counted with {result['tokenizer']['name']} "
        f"at {result['tokens_per_second']:,.0f} tokens per second.",
        f"{result['distinct']:,} of {result['vocab_size']:,} tokens of the vocabulary occur.",
        f"Held out: {result['held_out_tokens']:,} tokens in {result['held_out_documents']:,} documents.",
        "",
        *(f"  {file['name']}: {file['tokens']:,} tokens, {file['documents']:,} documents" for file in result["files"]),
    ]
    if result["bad_records"]:
        lines += ["", f"Lines skipped: {result['bad_records']:,}."]
        lines += [f"  {bad['file']}:{bad['line']}: {bad['reason']}" for bad in result["first_bad_records"]]
        if result["bad_records"] > len(result["first_bad_records"]):
            lines.append("  ...")
    if result["out"]:
        lines += ["", f"Saved to {result['out']}."]
    return "\n".join(lines)
