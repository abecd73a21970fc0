from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from drafters import checkpoints
from tiny_models import save_first_layer, save_tiny_llama
from tiny_tokenizer import TEXT, make_tiny_tokenizer

from vocabtrim_core import defaults
from vocabtrim_core.cli import main
from vocabtrim_core.commands.compare import describe
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.drafters import registry
from vocabtrim_core.models import ModelPair
from vocabtrim_core.sentences import visible
from vocabtrim_core.shipped import sample_corpus_path, shipped_counts_path
from vocabtrim_core.zipf import fit_zipf

ROOT = Path(__file__).parent.parent
PROMPT = "The dog and the cat"

# Runs the command line in this process; its JSON object.
Json = Callable[..., dict]


@dataclass(frozen=True)
class Folder:
    """A tiny model pair, a corpus in its language, and the corpus's counts."""

    target: Path
    drafter: Path
    corpus: Path
    counts: Path
    vocab_size: int

    @property
    def models(self) -> list[str]:
        return ["--target", str(self.target), "--drafter", str(self.drafter)]

    @property
    def pair(self) -> list[str]:
        return [*self.models, "--counts", str(self.counts)]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    root = tmp_path_factory.mktemp("cli")
    tokenizer = make_tiny_tokenizer(root / "target")
    make_tiny_tokenizer(root / "drafter")
    target = save_tiny_llama(root / "target", vocab_size=tokenizer.vocab_size)
    save_first_layer(target, root / "drafter", vocab_size=tokenizer.vocab_size)
    corpus = root / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"text": f"{TEXT}{i}"}) + "\n" for i in range(100)) + "{broken\n")
    counts = root / "counts.npz"
    assert main(["count", str(corpus), "--tokenizer", str(root / "target"), "--out", str(counts)]) == 0
    return Folder(root / "target", root / "drafter", corpus, counts, tokenizer.vocab_size)


@pytest.fixture
def run_json(capsys: pytest.CaptureFixture[str]) -> Json:
    def run(*arguments: object) -> dict:
        code = main([*map(str, arguments), "--json"])
        output = capsys.readouterr()
        assert code == 0, output.err
        return json.loads(output.out)

    return run


def in_shell(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vocabtrim_core", *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, cwd=ROOT, text=True, timeout=300, **options)


# ---------------------------------------------------------------------------------------------------------------------
# As a program


def test_help_is_light() -> None:
    """Bug: `--help` waits seconds for torch."""
    script = (
        "import sys, vocabtrim_core.cli as cli\n"
        "try: cli.main(['compare', '--help'])\n"
        "finally: assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--gamma" in done.stdout


def test_stdout_is_one_object(tiny: Folder) -> None:
    """Bug: a progress line or a library's notice on stdout breaks what reads the JSON."""
    done = in_shell("generate", "--prompt", PROMPT, "--k", 100, "--max-new-tokens", 8, *tiny.pair, "--json")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["token_ids"]) <= 8


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["nonsense"],
        ["count"],
        ["count", "missing.txt"],
        ["generate", "--prompt", "Hello", "--method", "magic"],
        ["generate", "--prompt", "Hello", "--gamma", "three"],
        ["generate", "--prompt", "Hello", "--target", "/no/such/model"],
        ["compare", "--prompt", "Hello", "--prompts", "file.jsonl"],
        ["coverage", "missing.npz", "--k", "1024;4096"],
    ],
)
def test_mistake_as_program(arguments: list[str]) -> None:
    """Bug: a mistake shows a traceback or argparse's usage, prints to stdout, or does not exit with 2."""
    done = in_shell(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


def test_reader_that_left(tiny: Folder) -> None:
    """Bug: `| head` ends in a traceback about a broken pipe."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = in_shell("coverage", tiny.counts, "--k", 100, stdout=writing)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_interrupt(tiny: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: Ctrl-C in the middle of a run shows a traceback."""
    # A shell starts background jobs with this signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        code = main(["compare", "--prompt", PROMPT, "--k", "100", "--repeats", "1000", *tiny.pair])
    finally:
        interrupt.cancel()
        signal.signal(signal.SIGINT, before)
    output = capsys.readouterr()
    assert (code, output.out, output.err) == (130, "", "")


# ---------------------------------------------------------------------------------------------------------------------
# count and coverage


def test_count(tiny: Folder, run_json: Json, tmp_path: Path) -> None:
    """Bug: what is printed is not what is saved, or a skipped line goes unsaid."""
    out = tmp_path / "counts.npz"
    result = run_json("count", tiny.corpus, "--tokenizer", tiny.target, "--out", out, "--holdout", 0.3)
    counts = TokenCounts.load(out)
    assert result["tokens"] == counts.calibration.sum() + counts.held_out.sum()
    assert (result["documents"], result["distinct"]) == (100, counts.distinct)
    assert result["vocab_size"] == tiny.vocab_size
    assert 0 < result["held_out_tokens"] < result["tokens"]
    assert result["tokens_per_second"] > 0
    assert result["bad_records"] == 1
    assert result["first_bad_records"][0]["line"] == 101


def test_count_of_sample_with_embedded_tokenizer(run_json: Json, embedded_pair_fp32: ModelPair) -> None:
    """Bug: the default tokenizer is not the embedded target's."""
    result = run_json("count", sample_corpus_path())
    assert result["tokenizer"]["fingerprint"] == embedded_pair_fp32.tokenizer.fingerprint
    assert result["vocab_size"] == 49_152


def test_coverage(run_json: Json, embedded_pair_fp32: ModelPair) -> None:
    """Bug: forced tokens are not at the front, a side is taken for the other, or k is off by one."""
    result = run_json("coverage", shipped_counts_path(), "--k", "1024,49152", "--tokenizer", "embedded")
    counts = TokenCounts.load(shipped_counts_path())
    control = list(embedded_pair_fp32.tokenizer.control_ids)
    order = np.argsort(-counts.calibration, kind="stable")
    kept = [*control, *order[~np.isin(order, control)]][:1024]
    for side in ("calibration", "held_out"):
        histogram = getattr(counts, side)
        assert result["coverage"]["1024"][side] == pytest.approx(histogram[kept].sum() / histogram.sum())
        assert result["coverage"]["49152"][side] == 1
    fit = fit_zipf(counts.total)
    assert fit is not None and result["zipf_exponent"] == fit.exponent
    k_for = result["k_for"]
    assert len(control) < k_for["0.9"] < k_for["0.95"] < k_for["0.99"]
    exact = run_json("coverage", shipped_counts_path(), "--k", f"{k_for['0.95'] - 1},{k_for['0.95']}")["coverage"]
    below, reached = (side["calibration"] for side in exact.values())
    assert below < 0.95 <= reached


def test_coverage_without_held_out_text(tiny: Folder, run_json: Json, tmp_path: Path) -> None:
    """Bug: NaN, which is not JSON, for a side on which nothing was counted."""
    out = tmp_path / "counts.npz"
    run_json("count", tiny.corpus, "--tokenizer", tiny.target, "--out", out, "--holdout", 0)
    result = run_json("coverage", out, "--k", 20)
    assert result["coverage"]["20"]["held_out"] is None
    assert result["k_for_held_out"]["0.95"] is None
    assert result["forced_tokens"] is None


# ---------------------------------------------------------------------------------------------------------------------
# generate and compare


@pytest.mark.parametrize("k", [None, 3, 40])
def test_generate_is_lossless(tiny: Folder, run_json: Json, k: int | None) -> None:
    """Bug: the drafter changes the output, or figures and events tell of another run."""
    common = ["generate", "--prompt", PROMPT, "--max-new-tokens", 40, *tiny.pair]
    vanilla = run_json(*common, "--method", "vanilla")
    drafted = run_json(*common, "--method", "speculative", *([] if k is None else ["--k", k]))
    assert drafted["token_ids"] == vanilla["token_ids"]
    assert drafted["settings"]["k"] == (tiny.vocab_size if k is None else k)
    assert vanilla["acceptance_length"] == 1 and vanilla["acceptance_rate"] is None
    events = drafted["events"]
    assert [token for event in events for token in event["emitted_ids"]] == drafted["token_ids"]
    assert drafted["cycles"] == len(events)
    assert drafted["acceptance_length"] == len(drafted["token_ids"]) / len(events)
    proposed = sum(len(event["drafted_ids"]) for event in events)
    assert drafted["acceptance_rate"] == sum(event["accepted"] for event in events) / proposed
    assert {"drafter_body", "drafter_head", "verification", "rest"} <= events[0]["times"].keys()


def test_the_number_format_in_use_is_said(tiny: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: nobody learns what auto is; the sentence is among what a script reads; a format is said that is not used."""
    common = ["generate", "--prompt", PROMPT, "--max-new-tokens", "2", *tiny.pair, "--json"]
    assert main([str(part) for part in common]) == 0
    output = capsys.readouterr()
    result = json.loads(output.out)
    assert result["settings"]["dtype"] == "float32"
    assert result["number_format_note"].startswith("auto is float32 on ")
    assert result["number_format_note"] in output.err
    assert main([*map(str, common), "--dtype", "float16"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["dtype"] == "float16"


def test_vanilla_needs_no_drafter(tiny: Folder, run_json: Json) -> None:
    """Bug: vanilla decoding of any model fails because the default drafter does not fit it."""
    run_json("generate", "--prompt", PROMPT, "--method", "vanilla", "--target", tiny.target, "--max-new-tokens", 2)


def test_stop_string(tiny: Folder, run_json: Json) -> None:
    """Bug: the text goes on after a stop string, or holds it."""
    common = ["generate", "--prompt", PROMPT, "--k", 100, "--max-new-tokens", 30, *tiny.pair]
    text = run_json(*common)["text"]
    stop = text[10:12]
    result = run_json(*common, "--stop", "not in there at all", "--stop", stop)
    assert result["finish"] == "stop string"
    assert result["text"] == text[: text.index(stop)]


def test_seed(tiny: Folder, run_json: Json) -> None:
    """Bug: a sampling option does not reach the sampler."""
    common = ["generate", "--prompt", PROMPT, "--k", 100, "--max-new-tokens", 20, *tiny.pair]
    sampled = [*common, "--temperature", 1, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.01]
    first, again, other = (run_json(*sampled, "--seed", seed)["token_ids"] for seed in (7, 7, 8))
    assert first == again != other
    assert run_json(*common, "--temperature", 1, "--top-k", 1)["token_ids"] == run_json(*common)["token_ids"]


def test_generate_with_embedded_pair(run_json: Json) -> None:
    """Bug: the shipped ranking is not found, or the defaults do not fit the embedded pair."""
    result = run_json("generate", "--prompt", "What is the capital of France?", "--max-new-tokens", 8)
    assert "Paris" in result["text"]
    assert result["settings"]["k"] == 4096


def test_compare_with_embedded_pair(run_json: Json) -> None:
    """Bug: greedy outputs differ in fp32, or a figure of the contract is missing."""
    result = run_json("compare", "--prompt", "Name a colour.", "--max-new-tokens", 8, "--repeats", 2)
    assert result["identical"] is True and result["differences"] == []
    assert set(result["methods"]) == {"vanilla", "untrimmed", "trimmed"}
    for figures in result["methods"].values():
        assert {"median", "low", "high"} == figures["tokens_per_second"].keys()
        times = figures["cycle_time"]
        assert times.pop("total") == pytest.approx(sum(times.values()))
    trimmed = result["methods"]["trimmed"]
    assert result["speedup_vs_vanilla"] == trimmed["speedup_vs_vanilla"]
    assert result["speedup_vs_untrimmed"] == trimmed["speedup_vs_untrimmed"]
    assert result["machine"]["dtype"] == "float32" and result["machine"]["threads"] >= 1


def test_compare_prompts_file(tiny: Folder, run_json: Json, tmp_path: Path) -> None:
    """Bug: a prompt of the file is left out, or the limit does not hold."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '{"turns": ["The cat"]}\n{"prompt": "The dog"}\n{"messages": [{"role": "user", "content": "Mat"}]}\n'
    )
    common = ["compare", "--prompts", path, "--repeats", 1, "--max-new-tokens", 5, "--k", 50, *tiny.pair]
    assert run_json(*common)["settings"]["prompts"] == 3
    assert run_json(*common, "--limit", 2)["settings"]["prompts"] == 2


def test_compare_in_batches(tiny: Folder, run_json: Json, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: the figures of a batch do not reach the output, or its description asks for what only single texts have."""
    common = ["compare", "--prompt", PROMPT, "--batch", "1,3", "--repeats", 1, "--max-new-tokens", 6, "--k", 50]
    result = run_json(*common, *tiny.pair)
    assert [batch["batch"] for batch in result["batches"]] == [1, 3]
    assert all(list(batch["methods"]) == ["vanilla", "untrimmed", "trimmed"] for batch in result["batches"])
    assert result["settings"]["k"] == 50 and result["settings"]["repeats"] == 1
    assert main([*map(str, common), *tiny.pair]) == 0
    assert "by size of the batch, trimmed: " in capsys.readouterr().out


def test_compare_with_sampling(tiny: Folder, run_json: Json) -> None:
    """Bug: sampled outputs, which differ by chance, are reported as a failure (or as identical)."""
    common = ["compare", "--prompt", PROMPT, "--repeats", 1, "--max-new-tokens", 10, "--k", 50, *tiny.pair]
    result = run_json(*common, "--temperature", 1)
    assert result["identical"] is None and result["differences"] == []


def test_human_output(tiny: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: a command fails only when its result is for people."""
    assert main(["count", str(tiny.corpus), "--tokenizer", str(tiny.target)]) == 0
    assert main(["coverage", str(tiny.counts), "--k", "10,100"]) == 0
    assert main(["generate", "--prompt", PROMPT, "--k", "50", "--max-new-tokens", "5", *tiny.pair]) == 0
    arguments = ["--k", "50", "--max-new-tokens", "5", "--repeats", "1", *tiny.pair]
    assert main(["compare", "--prompt", PROMPT, *arguments]) == 0
    output = capsys.readouterr().out
    for words in ("Records skipped: 1.", "held-out", "acceptance length", "All outputs are identical."):
        assert words in output


def test_slower_is_said(tiny: Folder, run_json: Json) -> None:
    """Bug: trimming that costs time is presented as a gain."""
    result = run_json("compare", "--prompt", PROMPT, "--repeats", 1, "--max-new-tokens", 5, "--k", 50, *tiny.pair)
    slow = {"median": 0.8, "low": 0.7, "high": 0.9}
    text = describe({**result, "speedup_vs_untrimmed": slow, "speedup_vs_vanilla": slow})
    assert "Trimming is slower here: 0.80x (0.70-0.90)" in text
    assert "Drafting itself is slower here" in text
    assert "measured once" in text
    unclear = {"median": 1.01, "low": 0.97, "high": 1.1}
    repeated = {**result["settings"], "repeats": 3}
    assert "within the spread" in describe({**result, "settings": repeated, "speedup_vs_untrimmed": unclear})


def test_difference_is_said(tiny: Folder, run_json: Json) -> None:
    """Bug: a difference in the output is hidden in the JSON."""
    result = run_json("compare", "--prompt", PROMPT, "--repeats", 1, "--max-new-tokens", 5, "--k", 50, *tiny.pair)
    difference = {"method": "trimmed", "where": "file.jsonl:3", "position": 4, "logit_margin": 0.002}
    text = describe({**result, "identical": False, "differences": [difference]})
    assert "file.jsonl:3, from token 4 on" in text and "0.002" in text


def test_terminal_is_safe() -> None:
    """Bug: an escape sequence that a model writes steers the terminal."""
    assert visible("a\x1b[2Jb\n\tc\x9b", keep="\n\t") == "a\\x1b[2Jb\n\tc\\x9b"


# ---------------------------------------------------------------------------------------------------------------------
# Drafters of every kind, chains and trees


@pytest.fixture(scope="session")
def added(tiny: Folder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Draft heads for the tiny target, by kind; "d2t" has a head of its own for every second token."""
    root = tmp_path_factory.mktemp("drafters")
    settings = checkpoints.config(vocab_size=tiny.vocab_size, eagle_aux_hidden_state_layer_ids=[0, 1, 1])
    kept = torch.arange(0, tiny.vocab_size, 2)
    # Offsets 0, 1, 2, ... could be ids as well, but for t2d.
    own_head = {**checkpoints.eagle3(kept=kept), "t2d": torch.isin(torch.arange(tiny.vocab_size), kept)}
    folders = {
        "eagle": checkpoints.save(root / "eagle", checkpoints.eagle1(embeddings=False), settings),
        "d2t": checkpoints.save(root / "d2t", own_head, settings),
        "medusa": checkpoints.save(root / "medusa", checkpoints.medusa(own_heads=False), None, "medusa_lm_head.pt"),
    }
    return {kind: str(folder) for kind, folder in folders.items()} | {"lookup": "lookup"}


@pytest.mark.parametrize("drafter", ["eagle", "d2t", "medusa", "lookup"])
@pytest.mark.parametrize("shape", [["--gamma", 3], ["--tree", "3,2,5"]], ids=["chain", "tree"])
def test_generate_with_each_kind(
    tiny: Folder, added: dict[str, str], run_json: Json, drafter: str, shape: list[object]
) -> None:
    """Bug: a kind is not recognised, changes the text, is not trimmed, or drafts a chain where a tree was asked for."""
    common = ["generate", "--prompt", PROMPT, "--max-new-tokens", 20, *tiny.pair]
    vanilla = run_json(*common, "--method", "vanilla")
    result = run_json(*common, "--drafter", added[drafter], *shape, *([] if drafter == "lookup" else ["--k", 40]))
    assert result["token_ids"] == vanilla["token_ids"]
    settings = result["settings"]
    assert settings["kind"] == ("eagle" if drafter == "d2t" else drafter)
    assert settings["k"] == (None if drafter == "lookup" else 40)
    if shape[0] == "--gamma":
        assert (settings["gamma"], settings["tree"]) == (3, None)
    else:
        assert settings["tree"] == {"depth": 3, "branches": 2, "nodes": 5} and settings["gamma"] is None
    if drafter != "lookup":
        most = max(len(event["drafted_ids"]) for event in result["events"])
        assert most == (3 if shape[0] == "--gamma" else 5)
    if drafter == "d2t":
        assert all(token % 2 == 0 for event in result["events"] for token in event["drafted_ids"])


def test_k_of_a_trimmed_checkpoint(
    tiny: Folder, added: dict[str, str], run_json: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: a head that came trimmed is ranked over tokens that it does not have."""
    common = ["compare", "--prompt", PROMPT, "--repeats", 1, "--max-new-tokens", 4, *tiny.pair]
    size = (tiny.vocab_size + 1) // 2
    result = run_json(*common, "--drafter", added["d2t"], "--k", 30)
    assert (result["settings"]["k"], result["settings"]["vocab_size"]) == (30, size)
    assert result["identical"] is True
    assert f"..{size}" in mistake(capsys, *common, "--drafter", added["d2t"], "--k", size + 1)


def test_texts_in_bfloat16_are_compared_bit_for_bit(
    tiny: Folder, run_json: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: in the fast number format a near tie is shown as a difference, or the rows do not hold a tree."""
    common = ["compare", "--prompt", PROMPT, "--repeats", 1, "--max-new-tokens", 8, "--k", 50, *tiny.pair]
    common += ["--dtype", "bfloat16"]
    chain = run_json(*common, "--gamma", 3)
    assert chain["identical"] is True and chain["fixed_rows"] == 4 and chain["differences"] == []
    tree = run_json(*common, "--tree", "2,2,5")
    assert tree["identical"] is True and tree["fixed_rows"] == 6
    assert "bit for bit at 4 rows" in describe(chain)
    difference = {"method": "trimmed", "where": None, "position": 4, "logit_margin": 0.1}
    said = describe({**chain, "timed_differences": [difference]})
    assert "bit for bit" in said and "As timed, runs whose output differs from vanilla's: 1." in said


def test_budget_bound_and_engines_are_told(tiny: Folder, run_json: Json) -> None:
    """Bug: a part of a cycle that nobody counts; a bound of another model; an engine without its reason."""
    result = run_json("compare", "--prompt", PROMPT, "--repeats", 1, "--max-new-tokens", 5, "--k", 50, *tiny.pair)
    for figures in result["methods"].values():
        assert figures["explained"] == pytest.approx(figures["cycle_time"]["total"] / figures["cycle_wall_seconds"])
        assert 0 < figures["explained"] <= 1
    bound = result["bound"]
    assert bound["seconds"] == pytest.approx(bound["weight_bytes"] / bound["bandwidth"])
    passes = result["methods"]["vanilla"]["cycle_time"]["verification"]
    assert bound["efficiency"] == pytest.approx(bound["seconds"] / passes)
    assert result["settings"]["engine"]["name"] == result["settings"]["drafter_engine"]["name"] == "lean"
    text = describe(result)
    for words in ("of the wall time", "of the bound", "Engine of the target: lean (its logits agree"):
        assert words in text


def test_lookup_is_one_method(tiny: Folder, run_json: Json, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: prompt lookup, which has no head, is shown trimmed, or asks for counts of its tokenizer."""
    common = ["compare", "--prompt", PROMPT, "--repeats", 1, "--max-new-tokens", 8, "--target", tiny.target]
    result = run_json(*common, "--drafter", "lookup")
    assert set(result["methods"]) == {"vanilla", "untrimmed"} and result["identical"] is True
    assert result["settings"]["k"] is None
    assert main([*map(str, common), "--drafter", "lookup"]) == 0
    assert "nothing to trim" in capsys.readouterr().out


def test_all_drafters_in_one_table(
    tiny: Folder, added: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: a drafter or a row is missing, vanilla is timed for each, or one that is not there ends it all."""
    folders = {"independent": tiny.drafter, "eagle": Path(added["eagle"])}
    monkeypatch.setattr(registry, "_folder", lambda name: folders.get(name, Path("/no/such/folder")))
    common = ["compare", "--drafter", "all", "--prompt", PROMPT, "--repeats", "1", "--max-new-tokens", "8", "--k", "40"]
    pair = ["--target", str(tiny.target), "--counts", str(tiny.counts)]
    assert main([*common, *pair, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [one["kind"] for one in result["drafters"]] == ["independent", "eagle", "lookup"]
    assert set(result["skipped"]) == {"medusa"} and "missing" in result["skipped"]["medusa"]
    for one in result["drafters"]:
        assert one["identical"] is True
        assert one["methods"]["vanilla"] == result["vanilla"]
        assert set(one["methods"]) == {"vanilla", "untrimmed", *([] if one["kind"] == "lookup" else ["trimmed"])}
    text = describe(result)
    rows = [line.strip().split("  ")[0] for line in text.splitlines()]
    names = ["vanilla", "independent, full", "independent, trimmed", "eagle, full", "eagle, trimmed", "lookup"]
    assert [row for row in rows if row in names] == names
    assert "acceptance length" in text and "Left out: medusa" in text and "All outputs are identical." in text


def test_kinds_are_those_of_the_registry() -> None:
    """Bug: a new kind can be loaded and is not offered."""
    assert defaults.DRAFTERS == registry.NAMES


# ---------------------------------------------------------------------------------------------------------------------
# Mistakes


def mistake(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    # On a slow machine progress is said before a mistake that shows late.
    lines = [line for line in output.err.splitlines() if not re.match(r" *\d+% ", line)]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    "options, words",
    [
        (["--k", 2], "k = 2 is outside"),
        (["--k", 0], "k = 0 is outside"),
        (["--k", -5], "k = -5 is outside"),
        (["--k", 100_000], "k = 100,000 is outside"),
        (["--gamma", 0], "gamma is 0"),
        (["--gamma", -1], "gamma is -1"),
        (["--max-new-tokens", 0], "new tokens is 0"),
        (["--temperature", -1], "temperature is -1"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-k", -1], "top-k is -1"),
        (["--top-p", 0], "top-p is 0"),
        (["--min-p", 1], "min-p is 1"),
        (["--seed", -1], "seed is -1"),
        (["--stop", ""], "stop string is empty"),
        (["--stop", "\ud83d"], "not valid Unicode"),
        (["--prompt", ""], "prompt is empty"),
        (["--prompt", " \n"], "prompt is empty"),
        (["--prompt", "\udc80"], "not valid Unicode"),
        (["--prompt", "word " * 600], "the context holds 512"),
        (["--dtype", "float12"], "--dtype"),
        (["--drafter", "/no/such/folder"], "/no/such/folder"),
        (["--tree", "4"], "depth, top-k and nodes"),
        (["--tree", "0,2,4"], "depth is 0"),
        (["--tree", "2,two,4"], "depth, top-k and nodes"),
        (["--counts", "/no/such/counts.npz"], "/no/such/counts.npz"),
        (["--counts", __file__], "not a counts file"),
        (["--counts", shipped_counts_path()], "another tokenizer"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "compare"])
def test_decoding_mistakes(
    tiny: Folder, capsys: pytest.CaptureFixture[str], command: str, options: list[object], words: str
) -> None:
    """Bug: a mistake surfaces as a traceback, as an error of another place, or not at all."""
    assert words in mistake(capsys, command, "--prompt", PROMPT, *tiny.pair, *options)


def test_no_ranking_for_other_tokenizer(tiny: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: the shipped ranking is used for a tokenizer whose ids mean something else."""
    assert "No ranking is shipped" in mistake(capsys, "generate", "--prompt", PROMPT, *tiny.models)


def test_drafter_of_other_tokenizer(tiny: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: a pair whose ids mean different things is decoded."""
    error = mistake(capsys, "generate", "--prompt", PROMPT, "--drafter", tiny.drafter)
    assert "tokenizers differ" in error


@pytest.mark.parametrize("options", [["--repeats", 0], ["--limit", 0]])
def test_compare_mistakes(tiny: Folder, capsys: pytest.CaptureFixture[str], options: list[object]) -> None:
    """Bug: no run at all ends in a division by zero."""
    assert f"{options[0]} is 0" in mistake(capsys, "compare", "--prompt", PROMPT, *tiny.pair, *options)


def test_long_prompt_of_file(tiny: Folder, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Bug: a prompt that does not fit is found only after the ones before it have run, or without its place."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "fine"}) + "\n" + json.dumps({"prompt": "word " * 600}))
    error = mistake(capsys, "compare", "--prompts", path, "--repeats", 1000, *tiny.pair)
    assert f"{path}:2: " in error


@pytest.mark.parametrize(
    "content, words",
    [(b"", "is empty"), (b"\x00\x01", "binary"), (b"caf\xe9", "line 1"), (b"{broken\n", "line 1")],
)
def test_bad_corpus(
    tiny: Folder, capsys: pytest.CaptureFixture[str], tmp_path: Path, content: bytes, words: str
) -> None:
    """Bug: a file that cannot be counted ends in a traceback."""
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(content)
    assert words in mistake(capsys, "count", path, "--tokenizer", tiny.target)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--holdout", 1], "held-out share is 1"),
        (["--holdout", -0.1], "held-out share is -0.1"),
        (["--out", "/no/such/folder/counts.npz"], "does not exist"),
        (["--out", "corpus.txt"], ".npz"),
        (["--tokenizer", "/no/such/folder"], "/no/such/folder"),
        (["--tokenizer", Path(__file__).parent], "no tokenizer.json"),
    ],
)
def test_count_mistakes(tiny: Folder, capsys: pytest.CaptureFixture[str], options: list[object], words: str) -> None:
    """Bug: a mistake surfaces as a traceback, after the counting, or overwrites a file that was meant to be read."""
    assert words in mistake(capsys, "count", tiny.corpus, "--tokenizer", tiny.target, *options)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--k", "2"], "k = 2 is outside"),
        (["--k", "10,100000"], "k = 100,000 is outside"),
        (["--k", "-3"], "k = -3 is outside"),
        (["--k", ""], "not a list of whole numbers"),
        (["--tokenizer", "embedded"], "another tokenizer"),
    ],
)
def test_coverage_mistakes(tiny: Folder, capsys: pytest.CaptureFixture[str], options: list[object], words: str) -> None:
    """Bug: a k without a draft vocabulary reads another entry of the curve; control ids of another tokenizer."""
    assert words in mistake(capsys, "coverage", tiny.counts, "--tokenizer", tiny.target, *options)
