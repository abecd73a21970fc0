"""The command line: `python -m vocabtrim_core count|answer|coverage|generate|compare|tune|bench`.

The result goes to stdout (with `--json` as one object), progress to stderr. A user's mistake is one line on stderr and
exit code 2. A result from which something is missing is printed and saved, with a line on stderr for each thing, and
the exit code is 3. Each command is a module of `commands`, imported once the arguments are known to be well-formed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol, TextIO, cast

from vocabtrim_core import defaults
from vocabtrim_core.errors import SettingError, VocabTrimError
from vocabtrim_core.sentences import shortened, visible

PROGRAM = "vocabtrim_core"
PROMPTS_HELP = "one object a line with turns, prompt or messages; the first turn is used"
TUNED = "default: what was fastest in the number format"
USER_ERROR = 2
INCOMPLETE = 3
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
MAX_LISTED = 64  # sizes in one option: each is measured
BROKEN_PIPE = 141  # 128 + SIGPIPE


class Command(Protocol):
    """What a module of `commands` offers."""

    def run(self, arguments: argparse.Namespace, report: Progress) -> dict:
        """Do it; the result is what `--json` prints. Its `problems` are sentences on what is missing from it."""
        ...

    def describe(self, result: dict) -> str:
        """The result for people."""
        ...


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line on `argv` (without the program's name) and return its exit code."""
    try:
        arguments = _parser().parse_args(argv)
        if "target" in arguments:
            from vocabtrim_core.commands.inputs import check_inputs

            check_inputs(arguments)
        command = cast(Command, importlib.import_module(f"vocabtrim_core.commands.{arguments.command}"))
        with Progress(sys.stderr) as report:
            result = command.run(arguments, report)
        if note := result.get("number_format_note"):
            print(note, file=sys.stderr)
        printed = _print(json.dumps(result, allow_nan=False) if arguments.json else command.describe(result))
        return printed or _tell(result.get("problems", []))
    except VocabTrimError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED


def _tell(problems: Sequence[str]) -> int:
    """Say what is missing from a result that was printed."""
    for problem in problems:
        _refuse(visible(problem))
    return INCOMPLETE if problems else 0


def _print(output: str) -> int:
    """Print what a terminal can show: what models and file names say must not steer it, and it may know few letters."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    shown = visible(output, keep="\n\t").encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(shown, flush=True)
    except OSError as error:
        # Python would complain when it flushes stdout once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # The reader has left (`| head`).
            return BROKEN_PIPE
        return _refuse(f"The result could not be printed: {error.strerror}. Print it to a place with room.")
    return 0


def _refuse(sentence: str) -> int:
    with suppress(OSError):  # Where stderr takes nothing, the exit code says it.
        print(f"{PROGRAM}: {sentence}", file=sys.stderr, flush=True)
    return USER_ERROR


class Progress:
    """Shows the share done and what is being done: one changing line on a terminal, else a line every few seconds.

    Only what takes a while is reported, so that a mistake found at once stays one line.
    """

    TERMINAL_SECONDS, LOG_SECONDS = 0.1, 10.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on_terminal = stream.isatty()
        self._every = self.TERMINAL_SECONDS if self._on_terminal else self.LOG_SECONDS
        self._next = time.monotonic() + self._every

    def __call__(self, share: float, message: str) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        line = f"{share:4.0%} {visible(message)}"
        # Work does not end because nobody can be told of it.
        with suppress(OSError):
            self._stream.write(f"\r\x1b[K{line}" if self._on_terminal else f"{line}\n")
            self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._on_terminal:
            with suppress(OSError):
                self._stream.write("\r\x1b[K")


class _Parser(argparse.ArgumentParser):
    """Reports a mistake as every other command does: in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{shortened(message, 500)} (see {self.prog} --help)")

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # argparse takes `--option=--` for an option without its value, and hands on an empty list.
        if action.option_strings and arg_strings == ["--"]:
            raise argparse.ArgumentError(action, "expected one argument")
        return super()._get_values(action, arg_strings)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"python -m {PROGRAM}",
        description="Count tokens, measure coverage, and decode with a trimmed drafter.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, help: str, epilog: str | None = None) -> argparse.ArgumentParser:
        description = f"{help[0].upper()}{help[1:]}."
        added = commands.add_parser(name, help=help, description=description, epilog=epilog, allow_abbrev=False)
        added.add_argument("--json", action="store_true", help="print one JSON object")
        return added

    _count_arguments(
        command(
            "count",
            "count the tokens of a corpus: files, folders and data sets of text and chats",
            "Exit codes: 0 all that was named is counted; 2 the input is invalid and nothing was counted; 3 the counts "
            "are saved, but a file is missing from them, whole or in part (one line each on stderr).",
        )
    )
    _answer_arguments(command("answer", "have the target or the drafter answer prompts, as text to count"))
    _coverage_arguments(command("coverage", "show which share of a text the k most frequent tokens cover"))
    _generate_arguments(command("generate", "decode after a prompt and show every cycle"))
    _compare_arguments(command("compare", "time vanilla, untrimmed and trimmed decoding of the same prompts"))
    _tune_arguments(command("tune", "predict the speed at every k and gamma from one pass, and recommend one"))
    _bench_arguments(command("bench", "measure the papers' tables: tokens per second and acceptance by task and k"))
    return parser


def _count_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="a file (text, source code, jsonl, json, csv, parquet, arrow, token ids; plain, .gz, .zst, .bz2 or .xz), "
        "a folder, a glob, or hf:NAME[:CONFIG][:SPLIT] for a data set",
    )
    parser.add_argument(
        "--tokenizer",
        default="embedded",
        metavar="FOLDER|ID",
        help="a folder with tokenizer.json, or a hub id (the embedded model's)",
    )
    parser.add_argument("--out", type=Path, metavar="COUNTS.npz", help="save the counts there")
    parser.add_argument(
        "--holdout",
        type=float,
        default=defaults.HOLDOUT,
        metavar="SHARE",
        help="share of documents to hold out (%(default)s)",
    )
    parser.add_argument("--field", metavar="NAME", help="the field with the text or the chat (detected)")
    parser.add_argument(
        "--roles",
        choices=("all", "assistant"),
        default="all",
        help="count whole chats, or only what the assistant wrote (%(default)s)",
    )
    parser.add_argument(
        "--newlines", choices=("lf", "keep"), default="lf", help="turn CRLF into LF, or keep it (%(default)s)"
    )
    parser.add_argument("--encoding", metavar="NAME", help="of text files, such as latin-1 (detected)")
    parser.add_argument("--token-dtype", choices=("uint16", "uint32"), help="of .bin files with token ids (detected)")
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="this machine's cores, or a Ray cluster (%(default)s)",
    )
    parser.add_argument(
        "--ray-address", metavar="ADDRESS", help="the cluster, with --engine ray ($RAY_ADDRESS, else one is made here)"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FOLDER",
        help="keep finished parts there, and do not count again what is there",
    )


def _answer_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompts", type=Path, metavar="PROMPTS.jsonl", help=PROMPTS_HELP)
    parser.add_argument("--by", choices=("target", "drafter"), required=True, help="which model writes")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="ANSWERS.jsonl",
        help="the data set; what it holds already is not written again",
    )
    parser.add_argument("--counts-out", type=Path, metavar="COUNTS.npz", help="count the answers and save that there")
    parser.add_argument(
        "--holdout",
        type=float,
        default=defaults.HOLDOUT,
        metavar="SHARE",
        help="share of prompts whose answers are held out of the counts (%(default)s)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N prompts of the file")
    parser.add_argument("--samples", type=int, default=1, metavar="N", help="answers to each prompt (%(default)s)")
    parser.add_argument(
        "--batch", type=int, default=defaults.BATCH, metavar="N", help="answers written at a time (%(default)s)"
    )
    _model_arguments(parser)
    _sampling_arguments(parser)


def _coverage_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "counts",
        nargs="*",
        type=Path,
        metavar="COUNTS",
        help="what count --out saved, or {id: count} or {token: count} in a .pt or .json file; the first is measured, "
        "and all are compared",
    )
    ranking = parser.add_mutually_exclusive_group()
    ranking.add_argument(
        "--mix",
        type=_weights,
        metavar="COUNTS=WEIGHT,...",
        help="measure, and rank by, several corpora in these proportions",
    )
    ranking.add_argument(
        "--list",
        type=Path,
        metavar="FILE",
        help="a ranking made elsewhere: a list of ids, a d2t or t2d, or counts, in .pt, .npy or .json",
    )
    parser.add_argument(
        "--k",
        type=_sizes,
        default=",".join(map(str, defaults.COVERAGE_SIZES)),
        metavar="N,N,...",
        help="draft vocabulary sizes (%(default)s)",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="FOLDER|ID",
        help="the tokenizer of the counts: its control tokens are in every draft vocabulary (the embedded model's, "
        "where the counts are of that one)",
    )
    parser.add_argument(
        "--prior",
        type=Path,
        metavar="COUNTS.npz",
        help="counts of other text, to smooth the ranking where text is thin",
    )
    for flag, help in (("--pin", "always keep these tokens"), ("--ban", "never keep these tokens")):
        parser.add_argument(
            flag,
            type=_tokens,
            default=[],
            metavar="ID,...",
            help=f"{help}; 'bytes' are those that spell rare characters byte by byte",
        )
    parser.add_argument(
        "--missing", type=int, default=10, metavar="N", help="list the N most costly missing tokens (%(default)s)"
    )


def _generate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", required=True, metavar="TEXT")
    parser.add_argument("--method", choices=("vanilla", "speculative"), default="speculative", help="(%(default)s)")
    _decoding_arguments(parser)


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    prompts = parser.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompt", metavar="TEXT")
    prompts.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE.jsonl",
        help=PROMPTS_HELP,
    )
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N prompts of the file")
    parser.add_argument(
        "--repeats", type=int, default=defaults.REPEATS, metavar="N", help="runs of each prompt (%(default)s)"
    )
    parser.add_argument(
        "--batch",
        type=_sizes,
        metavar="N,N,...",
        help="decode so many texts at a time, for each of these sizes (one, with a record of each cycle)",
    )
    _decoding_arguments(parser, every=True)


def _tune_arguments(parser: argparse.ArgumentParser) -> None:
    _task_arguments(parser, "--prompts")
    parser.add_argument(
        "--gammas", type=_gammas, default="1-8", metavar="N-N|N,N,...", help="draft lengths (%(default)s)"
    )
    parser.add_argument(
        "--measure",
        type=_sizes_or_full,
        default=[],
        metavar="K,K,full",
        help="run these k for real, at the recommended gamma",
    )
    _tree_argument(parser, "also say what draft trees of this shape give, at the k of --measure and a few more:")
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="FOLDER",
        help="keep the trace and the times of this machine there, and use them again while nothing has changed",
    )
    _sampling_arguments(parser)


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    _task_arguments(parser, "--tasks")
    parser.add_argument("--k", type=_sizes, required=True, metavar="N,N,...", help="draft vocabulary sizes")
    parser.add_argument("--gamma", type=int, metavar="N", help=f"draft length ({TUNED})")
    _sampling_arguments(parser)


def _task_arguments(parser: argparse.ArgumentParser, flag: str) -> None:
    parser.add_argument(
        flag,
        default="builtin",
        metavar="FILE|builtin",
        help=f"held-out prompts; {PROMPTS_HELP}, and its task is kept (builtin: seven tasks)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="use only the first N prompts of each task")
    parser.add_argument("--repeats", type=int, default=defaults.REPEATS, metavar="N", help="runs (%(default)s)")
    _model_arguments(parser)
    parser.add_argument("--counts", type=Path, metavar="COUNTS.npz", help="what ranks the tokens")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT; may be repeated")


def _decoding_arguments(parser: argparse.ArgumentParser, every: bool = False) -> None:
    _model_arguments(parser, every)
    option = parser.add_argument
    option(
        "--counts",
        type=Path,
        metavar="COUNTS.npz",
        help="what ranks the tokens (for the embedded model: counts of its own text)",
    )
    option(
        "--k",
        type=int,
        metavar="N",
        help=f"size of the draft vocabulary ({TUNED}, or all tokens where fewer)",
    )
    option("--gamma", type=int, metavar="N", help=f"draft chains of so many tokens ({TUNED})")
    _tree_argument(parser, f"draft trees ({TUNED}):")
    option("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT; may be repeated")
    _sampling_arguments(parser)


def _tree_argument(parser: argparse.ArgumentParser, purpose: str) -> None:
    parser.add_argument(
        "--tree",
        type=_tree,
        metavar="DEPTH,TOPK,NODES",
        help=f"{purpose} TOPK children at each of the TOPK best nodes of DEPTH levels, and the NODES best of them all "
        "(without NODES: all)",
    )


def _model_arguments(parser: argparse.ArgumentParser, every: bool = False) -> None:
    option = parser.add_argument
    option("--target", default="embedded", metavar="FOLDER|ID", help="the model that decides (%(default)s)")
    option(
        "--drafter",
        default=defaults.DRAFTER,
        metavar="KIND|FOLDER|ID",
        help=f"what proposes: {', '.join(defaults.DRAFTERS)} as they come with the embedded target, or one from a "
        f"folder or the hub{', or all of them in one table' if every else ''} (%(default)s)",
    )
    option(
        "--dtype",
        choices=defaults.DTYPES,
        default=defaults.DTYPES[0],
        help="number format of the weights; auto is what this processor decodes fastest (default: %(default)s)",
    )


def _sampling_arguments(parser: argparse.ArgumentParser) -> None:
    def option(flag: str, kind: type, default: object, metavar: str, help: str) -> None:
        parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=help)

    option("--max-new-tokens", int, defaults.MAX_NEW_TOKENS, "N", "tokens to generate at most (%(default)s)")
    option("--temperature", float, 0.0, "T", "0 is greedy (%(default)s)")
    option("--top-k", int, 0, "N", "sample from the N likeliest tokens; 0 is off (%(default)s)")
    option("--top-p", float, 1.0, "SHARE", "sample from the likeliest tokens of this share; 1 is off (%(default)s)")
    option("--min-p", float, 0.0, "SHARE", "drop tokens below this share of the likeliest's; 0 is off (%(default)s)")
    option("--seed", int, 0, "N", "of the sampling (%(default)s)")


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 1024,4096") from None
    if len(sizes) > MAX_LISTED:
        raise argparse.ArgumentTypeError(f"{len(sizes):,} sizes are too many; give at most {MAX_LISTED}")
    return sizes


def _sizes_or_full(text: str) -> list[int | None]:
    """None is the whole vocabulary."""
    parts = text.split(",")
    _sizes(",".join("0" if part == "full" else part for part in parts))
    return [None if part == "full" else int(part) for part in parts]


def _gammas(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    try:
        ends = [int(first), int(last)] if dash else sorted(set(_sizes(text)))
    except (ValueError, argparse.ArgumentTypeError):
        ends = []
    if not ends or not 1 <= ends[0] <= ends[-1] <= 32:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 1-8 or 1,2,4, from 1 to 32")
    return list(range(ends[0], ends[-1] + 1)) if dash else ends


def _tree(text: str) -> list[int]:
    try:
        shape = [int(part) for part in text.split(",")]
    except ValueError:
        shape = []
    if len(shape) not in (2, 3):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 4,4,16: depth, top-k and nodes") from None
    return shape


def _weights(text: str) -> dict[Path, float]:
    weights: dict[Path, float] = {}
    try:
        for part in text.split(","):
            path, _, weight = part.rpartition("=")
            if not path:
                raise ValueError
            weights[Path(path)] = weights.get(Path(path), 0.0) + float(weight)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form chat.npz=0.6,code.npz=0.4") from None
    return weights


def _tokens(text: str) -> list[str]:
    tokens = [token.strip() for token in text.split(",")]
    # No vocabulary has ids of more than nine digits.
    if not all(token == "bytes" or (token.isascii() and token.isdecimal() and len(token) < 10) for token in tokens):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids such as 11,4096")
    return tokens
