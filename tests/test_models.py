from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import SIZES, save_first_layer, save_random, save_tiny_llama
from tiny_tokenizer import make_tiny_tokenizer
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Cohere2Config,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    PhiConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from vocabtrim_core import models
from vocabtrim_core.drafters import registry
from vocabtrim_core.drafters.independent import IndependentModel
from vocabtrim_core.errors import ModelError, SettingError, TooLargeError
from vocabtrim_core.models import ModelPair, load_model, load_pair
from vocabtrim_core.number_format import NumberFormat

VOCAB = 70
FAMILIES = {
    "llama": LlamaConfig(**SIZES, vocab_size=VOCAB),
    "llama, tied": LlamaConfig(**SIZES, vocab_size=VOCAB, tie_word_embeddings=True),
    "cohere (logit scale)": CohereConfig(**SIZES, vocab_size=VOCAB, logit_scale=0.25),
    "cohere2 (logit scale)": Cohere2Config(**SIZES, vocab_size=VOCAB, logit_scale=0.25),
    "granite (logits scaling)": GraniteConfig(**SIZES, vocab_size=VOCAB, logits_scaling=4.0),
    "gemma2 (soft cap)": Gemma2Config(**SIZES, vocab_size=VOCAB, final_logit_softcapping=2.0),
    "gemma3 (soft cap)": Gemma3TextConfig(**SIZES, vocab_size=VOCAB, final_logit_softcapping=2.0),
    "qwen2 (attention bias)": Qwen2Config(**SIZES, vocab_size=VOCAB),
    "phi (head bias)": PhiConfig(**SIZES, vocab_size=VOCAB),
    "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=VOCAB, initializer_range=0.3),
}
IDS = torch.tensor([3, 11, 42, 5, 5, 69, 0, 17])


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES.keys())
def test_body_and_head_give_the_models_own_logits(config: PreTrainedConfig, tmp_path: Path) -> None:
    """Bug: a head that forgets the bias, the scale or the soft cap of its family drafts and verifies the wrong law."""
    save_random(config, tmp_path)
    model = load_model(tmp_path)
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path)(input_ids=IDS[None]).logits[0]
    backbone = model.new_backbone()
    hidden = torch.cat([backbone.run(IDS[:5]), backbone.run(IDS[5:])])
    torch.testing.assert_close(model.head.logits(hidden), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.3  # else a forgotten scale or cap would pass for rounding
    assert (model.vocab_size, model.hidden_size, model.dtype) == (VOCAB, 32, torch.float32)


def test_bf16_is_loaded_as_bf16(tmp_path: Path) -> None:
    """Bug: the dtype asked for is ignored, and figures labelled bf16 are fp32's."""
    save_tiny_llama(tmp_path, VOCAB)
    model = load_model(tmp_path, dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    assert {parameter.dtype for parameter in model.body.parameters()} == {torch.bfloat16}


def test_float16_is_float32_with_rounded_matrices(tmp_path: Path) -> None:
    """Bug: vectors rounded as well; activations in float16; a body and a head that were rounded differently; a model
    that transformers runs is loaded in a format that it computes slowly in."""
    save_tiny_llama(tmp_path, VOCAB)
    exact, model = load_model(tmp_path, dtype="float32"), load_model(tmp_path, dtype="float16")
    assert model.dtype == torch.float16 and model.number_format == "float16" and model.engine.name == "lean"
    for ours, theirs in zip(model.body.parameters(), exact.body.parameters(), strict=True):
        assert torch.equal(ours, theirs.half().float() if theirs.dim() > 1 else theirs)
    assert torch.equal(model.head.weight, exact.head.weight.half())
    logits = [one.head.logits(one.new_backbone().run(IDS)) for one in (model, exact)]
    assert logits[0].dtype == torch.float32
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-2, atol=1e-2)


def test_a_model_that_transformers_runs_says_that_float16_is_computed_in_float32(tmp_path: Path) -> None:
    """Bug: a body of another family in float16, which a processor computes many times as slowly."""
    save_random(FAMILIES["gemma2 (soft cap)"], tmp_path)
    model = load_model(tmp_path, dtype="float16")
    assert model.engine.name == "transformers" and "in float32 with weights rounded to float16" in model.engine.reason
    assert model.new_backbone().run(IDS).dtype == torch.float32
    assert model.head.logits(model.new_backbone().run(IDS)).dtype == torch.float32


def test_weights_too_large_for_float16_are_refused_and_auto_avoids_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: infinite weights, and nonsense; a refusal where nobody asked for float16."""
    model = save_tiny_llama(tmp_path, VOCAB)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] = -70_000.0
    model.save_pretrained(tmp_path)
    with pytest.raises(TooLargeError, match=r"up_proj.* as large as 70,000, .*Choose another number format"):
        load_model(tmp_path, dtype="float16")
    monkeypatch.setattr(models, "number_format", lambda asked: NumberFormat("float16", "auto is float16"))
    loaded = load_model(tmp_path)
    assert loaded.number_format == "float32" and "auto is float32 for this model" in loaded.format_note


def test_a_head_that_does_more_is_refused(tmp_path: Path) -> None:
    """Bug: a family whose scale has the same name and the opposite sense (it multiplies) is decoded wrongly."""
    save_random(AutoConfig.for_model("hyperclovax", **SIZES, vocab_size=VOCAB, logits_scaling=4.0), tmp_path)
    with pytest.raises(ModelError, match="cannot be trimmed"):
        load_model(tmp_path)


def test_a_tied_head_shares_the_embeddings_memory(tmp_path: Path) -> None:
    """Bug: taking the head apart doubles the largest tensor of the model."""
    save_random(FAMILIES["llama, tied"], tmp_path)
    model = load_model(tmp_path)
    assert model.head.weight.data_ptr() == model.body.get_input_embeddings().weight.data_ptr()


def test_parameters_leave_the_embeddings_out(tmp_path: Path) -> None:
    """Bug: the table of embeddings, of which a row is read a token, counts as work of the body."""
    tied = save_random(FAMILIES["llama, tied"], tmp_path)
    model = load_model(tmp_path)
    assert model.parameters + model.head.weight.numel() == sum(p.numel() for p in tied.parameters())


def test_every_eos_of_both_configurations_counts(tmp_path: Path) -> None:
    """Bug: a chat model runs on past its turn because only one of its end tokens is known."""
    model = save_random(LlamaConfig(**{**SIZES, "eos_token_id": 7}, vocab_size=VOCAB), tmp_path)
    model.generation_config.eos_token_id = [9, 4]
    model.generation_config.save_pretrained(tmp_path)
    assert load_model(tmp_path).eos_ids == (4, 7, 9)


def test_unknown_dtype_is_a_setting_error(tmp_path: Path) -> None:
    """Bug: a typing error in --dtype ends in a traceback."""
    with pytest.raises(SettingError, match="auto, float16, bfloat16, float32"):
        load_model(tmp_path, dtype="float12")


def test_what_is_no_model_is_refused_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a wrong path ends in a traceback, or in minutes of silent attempts to reach a hub."""
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match="There is no folder"):
        load_model(tmp_path / "missing")
    # A port that nothing listens on: the hub's name must not be looked up for real.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelError, match=r"cannot be reached \(it gets 10 seconds.*offline"):
        load_model("someone/some-model-that-no-cache-has")


def test_an_incomplete_checkpoint_is_refused(tmp_path: Path) -> None:
    """Bug: the library fills what is missing with random numbers, and the model talks nonsense."""
    save_tiny_llama(tmp_path, VOCAB)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"incomplete.*up_proj"):
        load_model(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """Bug: half a download ends in a traceback from the file reader."""
    save_tiny_llama(tmp_path, VOCAB)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ModelError, match="could not be loaded"):
        load_model(tmp_path)


def test_bin_weights_are_read_without_running_their_pickle(tmp_path: Path) -> None:
    """Bug: a `.bin` file from a stranger runs a command when it is loaded."""
    model = save_tiny_llama(tmp_path, VOCAB)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert load_model(tmp_path).vocab_size == VOCAB

    trace = tmp_path / "trace"

    class Payload:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(trace),)

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(), protocol=2))
    with pytest.raises(ModelError, match="could not be loaded"):
        load_model(tmp_path)
    torch.save({"model.norm.weight": Payload()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="could not be loaded"):
        load_model(tmp_path)
    assert not trace.exists()


def test_code_in_a_model_folder_is_not_run(tmp_path: Path) -> None:
    """Bug: choosing a folder runs the Python file that lies in it."""
    trace = tmp_path / "trace"
    (tmp_path / "code.py").write_text(f"import os\nos.mkdir({str(trace)!r})\n")
    settings = {"model_type": "unheard-of", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError):
        load_model(tmp_path)
    assert not trace.exists()


def make_pair(root: Path, drafter_text: str | None = None, padding: int = 0) -> tuple[Path, Path]:
    """Folders of a target and a drafter; a tokenizer of its own for the drafter where `drafter_text` is given."""
    tokenizer = make_tiny_tokenizer(root / "target")
    make_tiny_tokenizer(root / "drafter", **({} if drafter_text is None else {"text": drafter_text}))
    target = save_tiny_llama(root / "target", tokenizer.vocab_size)
    save_first_layer(target, root / "drafter", tokenizer.vocab_size + padding)
    return root / "target", root / "drafter"


def test_padded_vocabularies_of_different_size_make_a_pair(tmp_path: Path) -> None:
    """Bug: two sizes of one family are refused, or padding rows count as tokens."""
    pair = load_pair(*make_pair(tmp_path, padding=20))
    assert pair.drafter.vocab_size == pair.target.vocab_size + 20
    assert pair.usable_vocab_size == pair.tokenizer.vocab_size == pair.target.vocab_size


def test_the_tokenizers_eos_ends_the_targets_text(tmp_path: Path) -> None:
    """Bug: the chat template's end of turn, known to the tokenizer alone, does not end a text."""
    target, drafter = make_pair(tmp_path)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "eos_token_id": 0}))
    (target / "generation_config.json").unlink()
    pair = load_pair(target, drafter)
    assert pair.target.eos_ids == (0, *pair.tokenizer.eos_ids)


def test_different_tokenizers_are_refused_with_the_first_difference(tmp_path: Path) -> None:
    """Bug: ids of one tokenizer are read as another's, and the drafter proposes noise without a word."""
    target, drafter = make_pair(tmp_path, drafter_text="zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich")
    with pytest.raises(
        ModelError, match=r"tokenizers differ: token 259 is “.+” for the target and “.+” for the drafter"
    ):
        load_pair(target, drafter)


def test_another_chat_template_does_not_part_a_pair(tmp_path: Path) -> None:
    """Bug: a base model cannot draft for its own chat model."""
    target, drafter = make_pair(tmp_path)
    make_tiny_tokenizer(drafter, chat_template=None)
    assert load_pair(target, drafter).tokenizer.has_chat_template


def without_embeddings(drafter: Path) -> None:
    """Leave only the layers of a drafter, as the embedded one is shipped."""
    weights = load_file(drafter / "model.safetensors")
    layers = {
        name.removeprefix("model."): tensor for name, tensor in weights.items() if "layers" in name or "norm" in name
    }
    save_file(layers, drafter / "model.safetensors", metadata={"format": "pt"})
    (drafter / "tokenizer.json").unlink()


def test_a_drafter_without_embeddings_uses_the_targets(tmp_path: Path) -> None:
    """Bug: the drafter gets random embeddings, or a copy that doubles the memory."""
    target, drafter = make_pair(tmp_path)
    whole = load_pair(target, drafter).drafter
    without_embeddings(drafter)
    pair = load_pair(target, drafter)
    assert isinstance(whole, IndependentModel) and isinstance(pair.drafter, IndependentModel)
    assert pair.drafter.model.body.get_input_embeddings() is pair.target.body.get_input_embeddings()
    assert pair.drafter.head is pair.target.head
    ids = torch.tensor([5, 9, 200, 7])
    expected = whole.head.logits(whole.model.new_backbone().run(ids))
    assert torch.equal(pair.drafter.head.logits(pair.drafter.model.new_backbone().run(ids)), expected)


def test_a_drafter_without_embeddings_needs_its_own_target(tmp_path: Path) -> None:
    """Bug: it is loaded alone, or beside a target of another width, and fails deep inside a matmul."""
    _, drafter = make_pair(tmp_path)
    without_embeddings(drafter)
    with pytest.raises(ModelError, match="Choose it as the drafter"):
        load_model(drafter)
    other = save_random(LlamaConfig(**{**SIZES, "hidden_size": 48}, vocab_size=300), tmp_path / "other")
    make_tiny_tokenizer(tmp_path / "other")
    with pytest.raises(ModelError, match=f"width 32 .* has width {other.config.hidden_size}"):
        load_pair(tmp_path / "other", drafter)


def test_a_kind_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a kind whose folder is missing is looked up on the hub, or ends in a traceback."""
    target, _ = make_pair(tmp_path)
    monkeypatch.setattr(registry, "_SHIPPED", tmp_path)
    with pytest.raises(ModelError, match=r"The eagle drafter .* is missing"):
        load_pair(target, "eagle")
    assert registry.is_at_hand("lookup") and registry.is_at_hand("/a/folder") and not registry.is_at_hand("eagle")
    assert load_pair(target, "lookup").drafter.head is None


def test_progress_ends_at_one_and_never_goes_back(tmp_path: Path) -> None:
    """Bug: the bar jumps back or stays short of its end."""
    shares: list[float] = []
    load_pair(*make_pair(tmp_path), on_progress=lambda share, message: shares.append(share))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_the_embedded_pair_is_what_it_says(embedded_pair_fp32: ModelPair) -> None:
    """Bug: a wrong conversion (context, end tokens, rope) makes the embedded target forget what it knows."""
    pair = embedded_pair_fp32
    assert (pair.target.vocab_size, pair.usable_vocab_size, pair.target.hidden_size) == (49_152, 49_152, 576)
    assert (pair.target.max_length, pair.target.eos_ids) == (8192, (2,))
    assert pair.drafter.head is pair.target.head
    ids = pair.tokenizer.encode_prompt("What is the capital of France?")
    backbone, answer = pair.target.new_backbone(), []
    step = torch.tensor(ids)
    while len(answer) < 12 and (not answer or answer[-1] not in pair.target.eos_ids):
        step = pair.target.head.logits(backbone.run(step)[-1:]).argmax(-1)  # [1]
        answer.append(int(step))
    assert pair.tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
