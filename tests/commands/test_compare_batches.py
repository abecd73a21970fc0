"""`compare --batch` on tiny models: figures by size and method, and refusals in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from transformers import Gemma2Config

from tests.toys import NEVER, causal_lm, language_model
from vocabtrim_core.cli import main
from vocabtrim_core.commands import compare_batches
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.drafters.independent import IndependentModel
from vocabtrim_core.errors import ModelError
from vocabtrim_core.evaluation.batches import BatchRun, check_batches, summarise_batches
from vocabtrim_core.evaluation.comparison import Contest
from vocabtrim_core.models import ModelPair
from vocabtrim_core.sampling import SamplingSettings

PROMPTS = [[3, 4, 5], [6], [7, 8]]


@pytest.fixture
def contest(tiny_pair: ModelPair) -> Contest:
    assert tiny_pair.drafter.head is not None
    head = tiny_pair.drafter.head.reordered(torch.arange(tiny_pair.usable_vocab_size).flip(0))
    return Contest(tiny_pair, head, 40, GenerationSettings(gamma=3, max_new_tokens=12), NEVER)


def test_every_size_and_method_has_its_figures(contest: Contest) -> None:
    """Bug: a size or method is left out, or a batch larger than the list of prompts is never full."""
    result = compare_batches.run(contest, PROMPTS, [1, 4], 2, lambda share, message: None)
    assert [batch["batch"] for batch in result["batches"]] == [1, 4]
    assert result["texts"] == 4
    for batch in result["batches"]:
        assert list(batch["methods"]) == ["vanilla", "untrimmed", "trimmed"]
        assert batch["methods"]["vanilla"]["acceptance_length"] == 1
        assert batch["methods"]["vanilla"]["speedup_vs_vanilla"] is None
        assert batch["methods"]["vanilla"]["sequences"] == batch["batch"]
        for figures in batch["methods"].values():
            assert figures["differing"] == 0
            speed = figures["tokens_per_second"]
            assert 0 < speed["low"] <= speed["median"] <= speed["high"]
    text = "\n".join(compare_batches.describe(result))
    assert "All outputs are identical." in text and "x at 1" in text and "x at 4" in text


def test_figures_follow_from_the_runs(contest: Contest) -> None:
    """Bug: ratios upside down or over another size, tokens counted a round instead of a sequence."""
    sampled = Contest(contest.pair, contest.ranked_head, 40, GenerationSettings(sampling=SamplingSettings(1.0)), NEVER)

    def runs(seconds: Sequence[float]) -> dict:
        methods = zip(sampled.methods, seconds, strict=True)
        return {(0, 2, method): BatchRun(((1, 2, 3), (4, 5, 6)), 4, 2, own) for method, own in methods}

    figures = summarise_batches(sampled, runs([6.0, 3.0, 2.0]), [2], 1)[2]
    assert figures["trimmed"].tokens_per_second.median == 3
    assert figures["trimmed"].acceptance_length == 1.5
    assert figures["trimmed"].sequences == 2
    assert figures["trimmed"].speedup_vs_vanilla and figures["trimmed"].speedup_vs_vanilla.median == 3
    assert figures["trimmed"].speedup_vs_untrimmed and figures["trimmed"].speedup_vs_untrimmed.median == 1.5
    assert figures["untrimmed"].speedup_vs_untrimmed is None
    assert figures["trimmed"].differing is None


def test_a_model_that_runs_through_transformers_is_refused(tiny_pair: ModelPair) -> None:
    """Bug: sequences run one by one, shown as a batch."""
    gemma = language_model(
        causal_lm(0, Gemma2Config(vocab_size=32, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                                  num_attention_heads=4, num_key_value_heads=2, head_dim=8))
    )  # fmt: skip
    for pair in (
        ModelPair(gemma, tiny_pair.drafter, tiny_pair.tokenizer),
        ModelPair(tiny_pair.target, IndependentModel(gemma), tiny_pair.tokenizer),
    ):
        with pytest.raises(ModelError, match=r"one sequence at a time.*without --batch"):
            check_batches(pair)
    check_batches(tiny_pair)


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--batch", "1,0"], "--batch has 0; choose different sizes from 1 to 64"),
        (["--batch", "2,2"], "has a size twice"),
        (["--batch", "1,2", "--drafter", "all"], "choose one with --drafter"),
        (["--batch", "some"], "not a list of whole numbers"),
    ],
)
def test_mistakes_are_a_sentence(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: a batch of none, or a table of all drafters asked for at once, ends in a traceback."""
    assert main(["compare", "--prompt", "Hello", *options]) == 2
    assert sentence in capsys.readouterr().err
