"""The memory limit of a pass."""

import torch
from toys import causal_lm, language_model
from transformers import LlamaConfig

from vocabtrim_core.evaluation.bandwidth import Bound, measure_bandwidth, measure_bound, pass_bytes


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
    """Bug: the ratio upside down."""
    assert Bound(100, seconds=2.0, measured_seconds=8.0).efficiency == 0.25


def test_what_is_measured_is_plausible() -> None:
    """Bug: bits for bytes, the pages' first touch timed, a bound that a cached pass beats because bytes are missing."""
    bandwidth = measure_bandwidth(repeats=2)
    assert 1e8 < bandwidth.spread.low <= bandwidth.best < 1e13
    model = language_model(causal_lm(0))
    bound = measure_bound(model, context=8, repeats=2)
    assert bound.weight_bytes == pass_bytes(model)
    assert 0 < bound.efficiency < 1
