"""The memory limit of a pass."""

import torch
from toys import causal_lm, language_model
from transformers import LlamaConfig

from vocabtrim_core.evaluation.bandwidth import Bound, bound_of, measure_bandwidth, pass_bytes


def test_a_pass_reads_the_body_and_the_head_and_no_embeddings() -> None:
    """Bug: input embeddings counted (a pass reads a row of them), tied weights counted twice or not at all, float32
    bytes counted for bfloat16."""
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    layer = 16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 24 + 2 * 16
    numbers = 2 * layer + 16 + 100 * 16
    assert pass_bytes(language_model(causal_lm(0, config))) == 4 * numbers
    assert pass_bytes(language_model(causal_lm(0, config, torch.bfloat16))) == 2 * numbers


def test_efficiency_is_the_bound_over_the_measured_time() -> None:
    """Bug: a ratio upside down."""
    bound = Bound(100, bandwidth=50.0, measured_seconds=8.0)
    assert bound.seconds == 2.0 and bound.efficiency == 0.25


def test_what_is_measured_is_plausible() -> None:
    """Bug: bits for bytes, the pages' first touch timed; a bound that is not the model's."""
    bandwidth = measure_bandwidth(repeats=2)
    assert 1e8 < bandwidth.spread.low <= bandwidth.best < 1e13
    model = language_model(causal_lm(0))
    assert bound_of(model, bandwidth, 1.0) == Bound(pass_bytes(model), bandwidth.best, 1.0)
