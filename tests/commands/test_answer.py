"""`answer` from end to end: a file of prompts to a data set, its counts, and a drafter that is trimmed by them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.tiny_models import save_first_layer, save_tiny_llama
from tests.tiny_tokenizer import make_tiny_tokenizer
from vocabtrim_core.cli import main
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.generated import read_answers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny pair (target/, drafter/) and five prompts."""
    root = tmp_path_factory.mktemp("answer")
    tokenizer = make_tiny_tokenizer(root / "target")
    make_tiny_tokenizer(root / "drafter")
    target = save_tiny_llama(root / "target", vocab_size=tokenizer.vocab_size)
    save_first_layer(target, root / "drafter", vocab_size=tokenizer.vocab_size)
    (root / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"The cat {i}"}) + "\n" for i in range(5)))
    return root


def answer(folder: Path, out: Path, *options: object) -> list[str]:
    models = ["--target", folder / "target", "--drafter", folder / "drafter"]
    return list(map(str, ["answer", folder / "prompts.jsonl", *models, "--out", out, "--max-new-tokens", 10, *options]))


def run_json(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict:
    capsys.readouterr()
    code = main([*arguments, "--json"])
    output = capsys.readouterr()
    assert code == 0, output.err
    return json.loads(output.out)


def test_answers_rank_the_drafters_tokens(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: what is printed, saved and counted are not the same answers, or other commands cannot use the counts."""
    out, counts_out = tmp_path / "answers.jsonl", tmp_path / "counts.npz"
    options = ["--by", "target", "--samples", 2, "--temperature", 1, "--counts-out", counts_out, "--holdout", 0.4]
    result = run_json(capsys, answer(folder, out, *options))
    answers, counts = list(read_answers(out)), TokenCounts.load(counts_out)
    ids = [token for each in answers for token in each.answer_ids]
    assert (counts.total == np.bincount(ids, minlength=counts.vocab_size)).all()
    assert (result["answers"], result["tokens"], result["added"], result["added_tokens"]) == (
        10,
        len(ids),
        10,
        len(ids),
    )
    assert result["ended_by_themselves"] == sum(each.finish == "eos" for each in answers)
    assert result["held_out_tokens"] == counts.held_out.sum()
    assert result["tokens_per_second"] > 0
    models = ["--target", str(folder / "target"), "--drafter", str(folder / "drafter")]
    trimmed = ["generate", "--prompt", "The cat", "--k", "40", "--max-new-tokens", "5", "--counts", str(counts_out)]
    assert run_json(capsys, [*trimmed, *models])["settings"]["k"] == 40


def test_second_run(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: a second run writes again, or counts other answers than those asked for."""
    out = tmp_path / "answers.jsonl"
    run_json(capsys, answer(folder, out, "--by", "target"))
    before = out.read_bytes()
    again = run_json(capsys, answer(folder, out, "--by", "target", "--limit", 2))
    assert (again["answers"], again["added"], again["tokens_per_second"]) == (2, 0, None)
    assert out.read_bytes() == before
    assert main(answer(folder, out, "--by", "target")) == 0
    assert "Nothing had to be written" in capsys.readouterr().out


def test_by_drafter(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: the target writes whoever was asked to."""
    by = {
        name: run_json(capsys, answer(folder, tmp_path / f"{name}.jsonl", "--by", name))
        for name in ("target", "drafter")
    }
    assert by["target"]["settings"]["model_fingerprint"] != by["drafter"]["settings"]["model_fingerprint"]
    assert by["drafter"]["settings"]["model_name"] == "drafter"
    assert (tmp_path / "target.jsonl").read_bytes() != (tmp_path / "drafter.jsonl").read_bytes()


@pytest.mark.parametrize(
    "options, words",
    [
        (["--by", "nobody"], "--by"),
        ([], "--by"),
        (["--by", "target", "--samples", 0], "samples is 0"),
        (["--by", "target", "--samples", 2], "would be the same"),
        (["--by", "target", "--batch", 0], "batch size is 0"),
        (["--by", "target", "--max-new-tokens", 0], "new tokens is 0"),
        (["--by", "target", "--temperature", "nan"], "temperature is nan"),
        (["--by", "target", "--holdout", 1], "held-out share is 1"),
        (["--by", "target", "--limit", 0], "--limit is 0"),
        (["--by", "target", "--counts-out", "counts.txt"], ".npz"),
        (["--by", "target", "--out", "answers.txt"], ".jsonl"),
        (["--by", "target", "--out", "/no/such/folder/answers.jsonl"], "does not exist"),
        (["--by", "drafter", "--drafter", "/no/such/folder"], "/no/such/folder"),
    ],
)
def test_mistakes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[object], words: str
) -> None:
    """Bug: a mistake surfaces as a traceback, or after the answers have been written."""
    assert main([*answer(folder, tmp_path / "answers.jsonl", *options), "--json"]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and words in output.err
    assert not (tmp_path / "answers.jsonl").exists()


def test_other_settings(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: a data set of other settings is overwritten or mixed with this run's."""
    out = tmp_path / "answers.jsonl"
    run_json(capsys, answer(folder, out, "--by", "target"))
    before = out.read_bytes()
    assert main(answer(folder, out, "--by", "target", "--temperature", 0.8)) == 2
    assert "its temperature is 0, not 0.8" in capsys.readouterr().err
    assert out.read_bytes() == before
