"""Which engine runs a model, and that it says so."""

import pytest
import torch
from toys import causal_lm, decode, drafter_of, language_model, tokens
from transformers import Gemma2Config, LlamaConfig

from vocabtrim_core import engines
from vocabtrim_core.backbones import TransformersBackbone
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.errors import ModelError
from vocabtrim_core.lean import LeanBackbone, LeanBody

GEMMA = Gemma2Config(
    vocab_size=32,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    eos_token_id=None,
)


def test_a_llama_runs_lean_and_another_model_through_transformers_with_the_reason() -> None:
    """Bug: a covered model that silently runs slowly; a page that cannot say why."""
    llama = language_model(causal_lm(0))
    assert llama.engine.name == "lean" and "agree" in llama.engine.reason
    assert isinstance(llama.new_backbone(), LeanBackbone)
    gemma = language_model(causal_lm(0, GEMMA))
    assert gemma.engine.name == "transformers" and "Gemma2Model" in gemma.engine.reason
    assert isinstance(gemma.new_backbone((1,)), TransformersBackbone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_lean_body_that_computes_something_else_is_not_used(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a model of the family with a twist that the lean body does not know decodes nonsense."""

    class Twisted(LeanBody):
        def rotations(self, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
            cos, sin = super().rotations(capacity)
            return cos, -sin

    model = language_model(causal_lm(0, dtype=dtype))
    assert model.engine.name == "lean"
    monkeypatch.setattr(engines, "LeanBody", Twisted)
    engine = language_model(causal_lm(0, dtype=dtype)).engine
    assert engine.name == "transformers" and "logits differ" in engine.reason


def test_fixed_rows_are_refused_where_they_cannot_be_had() -> None:
    """Bug: a comparison that says it is bit for bit while the rows vary."""
    with pytest.raises(ModelError, match="fixed number of rows"):
        language_model(causal_lm(0, GEMMA)).new_backbone(fixed_rows=4)


def test_greedy_bfloat16_text_is_the_same_with_and_without_a_draft() -> None:
    """Bug: with fixed rows, the text of a bfloat16 target still changes with the draft: rows of the head left out, the
    setting not handed on."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=1536,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=None,
    )
    target = language_model(causal_lm(0, config, torch.bfloat16))
    for seed in range(2):
        prompt = torch.randint(0, 64, (20,), generator=torch.Generator().manual_seed(seed)).tolist()
        expected = tokens(decode(target, None, prompt, GenerationSettings(max_new_tokens=40, fixed_rows=9)))
        for gamma in (1, 3, 8):
            settings = GenerationSettings(gamma, 40, fixed_rows=9)
            found = decode(target, drafter_of(target, range(64), 40), prompt, settings)
            assert tokens(found) == expected, gamma
