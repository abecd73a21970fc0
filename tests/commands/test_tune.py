"""`tune` and `bench` on a tiny pair: the JSON that scripts read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_models import save_first_layer, save_tiny_llama
from tiny_tokenizer import TEXT, make_tiny_tokenizer

from vocabtrim_core.cli import main
from vocabtrim_core.evaluation import profile as profiling
from vocabtrim_core.evaluation import trace as tracing


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("tune")
    tokenizer = make_tiny_tokenizer(root / "target")
    make_tiny_tokenizer(root / "drafter")
    target = save_tiny_llama(root / "target", vocab_size=tokenizer.vocab_size)
    save_first_layer(target, root / "drafter", vocab_size=tokenizer.vocab_size)
    (root / "text.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    counted = ["count", str(root / "text.jsonl"), "--tokenizer", str(root / "target"), "--holdout", "0"]
    assert main([*counted, "--out", str(root / "counts.npz")]) == 0
    models = ["--target", str(root / "target"), "--drafter", str(root / "drafter")]
    return [*models, "--counts", str(root / "counts.npz"), "--max-new-tokens", "12"]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    lines = [
        {"task": "qa", "prompt": "The cat"},
        {"task": "code", "prompt": "A dog sat"},
        {"task": "qa", "prompt": "On"},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def run(capsys: pytest.CaptureFixture, *argv: str) -> dict:
    capsys.readouterr()
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_tune_gives_curve_recommendation_and_measured_points(
    pair: list[str], prompts: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: keys that scripts rely on are missing; `full` is not the vocabulary; a kept trace is made again."""
    keep = ["--keep", str(tmp_path / "traces")]
    argv = ["tune", "--prompts", prompts, *pair, "--gammas", "1-3", "--repeats", "1", *keep]
    result = run(capsys, *argv, "--measure", "120,full")
    size = result["settings"]["vocab_size"]
    assert {point["gamma"] for point in result["curve"]} == {1, 2, 3}
    assert all({"k", "gamma", "tau", "predicted_speedup", "low", "high"} <= point.keys() for point in result["curve"])
    best = result["recommended"]
    assert {"k", "gamma", "speedup", "low", "high", "trim"} <= best.keys()
    assert [(one["k"], one["gamma"]) for one in result["measured"]] == [(120, best["gamma"]), (size, best["gamma"])]
    for one in result["measured"]:
        (point,) = [p for p in result["curve"] if (p["k"], p["gamma"]) == (one["k"], one["gamma"])]
        assert one["tau"] == pytest.approx(point["tau"])
    monkeypatch.setattr(tracing, "record", lambda *_: pytest.fail("the target ran again"))
    monkeypatch.setattr(profiling, "measure_profile", lambda *_: pytest.fail("the machine was timed again"))
    assert run(capsys, *argv, "--limit", "2")["measured"] == []
    assert main(argv) == 0
    assert "gamma" in capsys.readouterr().out


def test_every_command_decodes_in_float16(
    pair: list[str], prompts: str, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    """Bug: float16 states or weights meet float32 ones in a trace, a replay, a kept trace, a batch or an answer."""
    pair = [*pair, "--dtype", "float16"]
    few = ["--prompts", prompts, *pair, "--repeats", "1"]
    tuned = ["tune", *few, "--gammas", "1-2", "--tree", "2,2,4", "--measure", "120", "--keep", str(tmp_path / "kept")]
    first, again = run(capsys, *tuned), run(capsys, *tuned)
    assert first["profile"]["dtype"] == "float16"
    assert [point["tau"] for point in first["curve"]] == [point["tau"] for point in again["curve"]]
    compared = run(capsys, "compare", *few, "--k", "120", "--gamma", "3")
    assert compared["identical"] and compared["fixed_rows"] >= 4 and compared["machine"]["dtype"] == "float16"
    assert run(capsys, "compare", *few, "--k", "120", "--batch", "2")["batches"]
    assert run(capsys, "bench", "--tasks", prompts, *pair, "--k", "120", "--repeats", "1")["table"]
    models = pair[: pair.index("--counts")]
    answered = run(capsys, "answer", prompts, *models, "--by", "target", "--out", str(tmp_path / "a.jsonl"))
    assert answered["answers"] == 3


def test_tune_replays_trees(pair: list[str], prompts: str, capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    """Bug: the tree's tau is the chain's, or not what a real run has; a prompt left out ends all, or is not told."""
    with open(prompts, "a") as file:
        file.write(json.dumps({"task": "qa", "prompt": "cat " * 2000}) + "\n")
    argv = ["tune", "--prompts", prompts, *pair, "--gammas", "2", "--repeats", "1", "--tree", "3,3,10"]
    result = run(capsys, *argv, "--measure", "120,full")
    tree = result["tree"]
    assert (tree["depth"], tree["branches"], tree["nodes"]) == (3, 3, 10)
    ks = [point["k"] for point in tree["points"]]
    assert ks == sorted(ks) and {120, result["recommended"]["k"], result["settings"]["vocab_size"]} <= set(ks)
    assert tree["points"][-1]["retained"] == 1
    ran = [point for point in tree["points"] if point["measured_speedup"]]
    assert [point["k"] for point in ran] == [120, result["settings"]["vocab_size"]]
    assert all(point["tau"] == pytest.approx(point["measured_tau"]) for point in ran)
    assert len(result["left_out"]) == 1 and result["settings"]["prompts"] == 3
    assert main(argv) == 0
    shown = capsys.readouterr().out
    assert "by replay" in shown and "Left out" in shown


def test_bench_gives_tasks_by_methods(pair: list[str], prompts: str, capsys: pytest.CaptureFixture) -> None:
    """Bug: a prompt under another task's column, or the whole vocabulary missing as the measure of the others."""
    result = run(capsys, "bench", "--tasks", prompts, *pair, "--k", "120,150", "--repeats", "1")
    assert (result["tasks"], result["prompts"]) == (["qa", "code", "all"], [2, 1, 3])
    assert [(row["method"], row["k"]) for row in result["table"]] == [
        ("vanilla", None),
        ("trimmed", 120),
        ("trimmed", 150),
        ("full", result["settings"]["vocab_size"]),
    ]
    for row in result["table"]:
        assert [cell["task"] for cell in row["cells"]] == ["qa", "code", "all"]
    assert all(cell["retained"] == 1 for cell in result["table"][-1]["cells"])
    assert result["published"][0]["tau"]
    assert main(["bench", "--tasks", prompts, *pair, "--k", "120", "--repeats", "1"]) == 0
    assert "FR-Spec" in capsys.readouterr().out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["tune", "--gammas", "8-1"], "1-8"),
        (["tune", "--measure", "2,all"], "list of whole numbers"),
        (["tune", "--limit", "0"], "--limit is 0"),
        (["tune", "--tree", "4,4,999"], "999 nodes"),
        (["tune", "--repeats", "0"], "--repeats is 0"),
        (["tune", "--prompts", "/no/such/file.jsonl"], "file.jsonl"),
        (["bench", "--k", "5", "--gamma", "0"], "gamma is 0"),
    ],
)
def test_mistakes_are_one_line(argv: list[str], message: str, capsys: pytest.CaptureFixture) -> None:
    """Bug: a traceback, or models loaded before a mistyped option is seen."""
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
