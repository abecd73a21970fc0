"""`coverage` from end to end: intervals, mixtures, several corpora, lists of others, pins and bans."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_tokenizer import make_tiny_tokenizer

from vocabtrim_core.cli import main
from vocabtrim_core.counting import TokenCounts

WORDS = "The cat sat on the mat and the dog saw the cat"
DIGITS = "31 + 41 = 72; 59 - 26 = 33; 53 * 5 = 265"


@dataclass(frozen=True)
class Corpora:
    tokenizer: Path
    words: Path
    digits: Path


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Corpora:
    root = tmp_path_factory.mktemp("coverage")
    make_tiny_tokenizer(root / "tokenizer")
    for name, text, documents in (("words", WORDS, 400), ("digits", DIGITS, 200)):
        corpus = root / f"{name}.jsonl"
        corpus.write_text(
            "".join(json.dumps({"text": text + " z" * (i % 7) + f" {i}"}) + "\n" for i in range(documents))
        )
        arguments = ["count", corpus, "--tokenizer", root / "tokenizer", "--out", root / f"{name}.npz"]
        assert main([*map(str, arguments), "--holdout", "0.3"]) == 0
    return Corpora(root / "tokenizer", root / "words.npz", root / "digits.npz")


def run_json(capsys: pytest.CaptureFixture[str], corpora: Corpora, *arguments: object) -> dict:
    capsys.readouterr()
    code = main([*map(str, ["coverage", *arguments, "--tokenizer", corpora.tokenizer]), "--json"])
    output = capsys.readouterr()
    assert code == 0, output.err
    return json.loads(output.out)


def test_intervals_hold_their_coverage(corpora: Corpora, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: the bounds are of another k, or of the calibration side."""
    result = run_json(capsys, corpora, corpora.words, "--k", "40,20")
    assert list(result["coverage"]) == ["20", "40"]
    for shares in result["coverage"].values():
        assert 0 < shares["held_out_low"] <= shares["held_out"] <= shares["held_out_high"] <= 1
    assert result["domain_matrix"] == {}


def test_domains_differ(corpora: Corpora, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: the matrix is transposed, or each text is measured by its own ranking only."""
    result = run_json(capsys, corpora, corpora.words, corpora.digits, "--k", 20)
    matrix = result["domain_matrix"]["20"]
    assert matrix["rows"] == matrix["columns"] == ["words", "digits"]
    own, foreign = matrix["coverage"][0]
    assert own == pytest.approx(result["coverage"]["20"]["held_out"])
    assert own > 0.9 and foreign < 0.8
    missing = result["missing_tokens"]["digits"]["20"]
    counts = TokenCounts.load(corpora.digits).total
    assert [one["count"] for one in missing] == [counts[one["id"]] for one in missing]
    assert any("=" in one["text"] for one in missing)


def test_a_mixture_is_in_between(corpora: Corpora, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: weights are taken in another order than their files, or the larger corpus wins."""
    result = run_json(capsys, corpora, "--mix", f"{corpora.digits}=1,{corpora.words}=3", "--k", 30)
    matrix = result["domain_matrix"]["30"]
    assert matrix["rows"] == ["digits", "words", "mixture"] and matrix["columns"] == ["digits", "words"]
    mixed = np.array(matrix["coverage"][2]) @ [0.25, 0.75]
    assert result["coverage"]["30"]["held_out"] == pytest.approx(mixed)
    assert mixed >= max(np.array(row) @ [0.25, 0.75] for row in matrix["coverage"][:2])
    same = run_json(capsys, corpora, "--mix", f"{corpora.words}=5", "--k", 30)
    plain = run_json(capsys, corpora, corpora.words, "--k", 30)
    assert same["coverage"] == plain["coverage"]


def test_pins_and_bans(corpora: Corpora, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: a pin that does not keep its token, or a ban that only moves it."""
    before = run_json(capsys, corpora, corpora.words, "--k", 12)
    token = before["missing_tokens"]["words"]["12"][0]
    pinned = run_json(capsys, corpora, corpora.words, "--k", 12, "--pin", token["id"])
    assert token["id"] not in [one["id"] for one in pinned["missing_tokens"]["words"]["12"]]
    assert pinned["forced_tokens"] == before["forced_tokens"] + 1
    banned = run_json(capsys, corpora, corpora.words, "--k", 200, "--ban", token["id"])
    (missing,) = (one for one in banned["missing_tokens"]["words"]["200"] if one["id"] == token["id"])
    assert missing["kept_from"] == banned["vocab_size"] and banned["banned_tokens"] == 1
    spelled = run_json(capsys, corpora, corpora.words, "--k", 130, "--pin", "bytes")
    assert spelled["forced_tokens"] == before["forced_tokens"] + 115


def test_lists_and_counts_of_others(corpora: Corpora, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: a list is ranked by the text's counts after all; counts without documents break the held-out side."""
    counts = TokenCounts.load(corpora.words)
    best = np.argsort(-counts.calibration, kind="stable")[:10].tolist()
    torch.save(best, tmp_path / "list.pt")
    listed = run_json(capsys, corpora, corpora.words, "--list", tmp_path / "list.pt", "--k", 13)
    plain = run_json(capsys, corpora, corpora.words, "--k", 13)
    assert listed["ranking"] == "list" and listed["observed_tokens"] == 13
    assert listed["coverage"] == plain["coverage"]
    assert any("does not name its tokenizer" in note for note in listed["notes"])
    frequencies = {i: int(count) for i, count in enumerate(counts.calibration)}
    torch.save(frequencies, tmp_path / "token_freq.pt")
    imported = run_json(capsys, corpora, tmp_path / "token_freq.pt", "--k", 13)["coverage"]["13"]
    assert imported["calibration"] == plain["coverage"]["13"]["calibration"]
    assert imported["held_out"] is imported["held_out_low"] is None


def test_table_for_people(corpora: Corpora, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: a filled vocabulary that is not said, or a table that breaks without an interval."""
    assert main(["coverage", str(corpora.words), str(corpora.digits), "--k", "200"]) == 0
    output = capsys.readouterr().out
    assert "tokens are forced or were counted; a larger k is filled in order of id" in output
    assert "row: the ranking; column: the text" in output
    assert "The rarest 75 % of the vocabulary make up" in output


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "nothing to measure"),
        (["{words}", "--mix", "{words}"], "not of the form"),
        (["--mix", "{words}=-1"], "weights of a mixture"),
        (["{words}", "--pin", "cat"], "list of token ids"),
        (["{words}", "--pin", "99999"], "outside the vocabulary"),
        (["{words}", "--ban", "0"], "must stay"),
        (["{words}", "--pin", "50", "--ban", "50"], "pinned"),
        (["{words}", "--ban", "50,51", "--k", "287"], "banned"),
        (["{words}", "--list", "{words}", "--pin", "50"], "--list"),
    ],
)
def test_mistakes(corpora: Corpora, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    """Bug: a traceback, or a figure in spite of the mistake."""
    filled = [argument.format(words=corpora.words) for argument in arguments]
    capsys.readouterr()
    assert (
        main(["coverage", *filled, *([] if "--k" in filled else ["--k", "20"]), "--tokenizer", str(corpora.tokenizer)])
        == 2
    )
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and words in output.err
