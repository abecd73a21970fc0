"""The number of rows at which bits do not depend on what is run together."""

import pytest
import torch
from toys import causal_lm, language_model
from transformers import Gemma2Config, LlamaConfig

from vocabtrim_core.evaluation import fixed_rows as checking
from vocabtrim_core.evaluation.fixed_rows import fixed_rows
from vocabtrim_core.heads import RankedHead
from vocabtrim_core.language_model import LanguageModel
from vocabtrim_core.lean import LeanBackbone

CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=64,
    intermediate_size=1536,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    eos_token_id=None,
)


@pytest.fixture
def target() -> LanguageModel:
    """With weights in float16."""
    model = causal_lm(0, CONFIG)
    for parameter in model.parameters():
        parameter.copy_(parameter.half())
    plain = language_model(model)
    return LanguageModel("tiny", plain.body, RankedHead(plain.head.weight.half(), torch.arange(64)), (), 256)


def test_the_number_is_enough_and_near(target: LanguageModel) -> None:
    """Bug: fewer rows than the draft has; far more than it needs, which costs time."""
    for least in (2, 3, 7, 9, 14):
        rows = fixed_rows(target, least)
        assert rows is not None and least <= rows < least + 4


def test_rows_whose_bits_depend_on_their_place_are_not_taken(
    target: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a kernel that sums a block's last row in another order changes text, and the texts are said to be compared
    bit for bit; the head's kernel, or the body's, is not tried."""

    def uneven(run: object, refused: tuple[int, ...]) -> object:
        def ran(self: object, first: torch.Tensor, *rest: object, **options: object) -> torch.Tensor:
            output = run(self, first, *rest, **options)  # type: ignore[operator]
            rows = options.get("rows") or getattr(self, "_rows", None)
            if rows in refused and len(output) == rows:
                output = output.clone()
                output[-1] = torch.nextafter(output[-1], torch.tensor(torch.inf))
            return output

        return ran

    for kind, name in ((LeanBackbone, "run"), (RankedHead, "logits")):
        with monkeypatch.context() as patched:
            checking._found.clear()
            patched.setattr(kind, name, uneven(getattr(kind, name), (4, 5)))
            assert fixed_rows(target, 4) == 6
            patched.undo()
            patched.setattr(kind, name, uneven(getattr(kind, name), (4, 5, 6, 7)))
            checking._found.clear()
            assert fixed_rows(target, 4) is None
            assert fixed_rows(target, 8) is not None
    checking._found.clear()


def test_an_engine_that_cannot_fix_its_rows_has_none() -> None:
    """Bug: a model that runs through transformers is asked for fixed rows, which it refuses with an error."""
    gemma = Gemma2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
    )
    assert fixed_rows(language_model(causal_lm(0, gemma)), 3) is None
