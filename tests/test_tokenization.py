"""Tokenizers: what is text stays text, what identifies a tokenizer, which tokens steer a model."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.npm_tokenizers import npm_tokenizer_folder
from tests.tiny_tokenizer import CONTROL_TEXTS, TEXT, make_tiny_tokenizer
from vocabtrim_core.errors import ModelError, TokenizerError
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer

PIECES = st.lists(st.sampled_from([*CONTROL_TEXTS, "<|im_", "end|>", "The cat", "\n", " ", "é猫🐈", "<s>", "\u2060"]))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


@given(PIECES.map("".join))
def test_text_round_trips_without_control_tokens(tokenizer: Tokenizer, text: str) -> None:
    """Bug: "<|im_end|>" typed by a person becomes the control token; something is added at either end."""
    (ids,) = tokenizer.encode_texts([text])
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(tokenizer.control_ids)


@given(st.lists(PIECES.map("".join), min_size=1, max_size=3), st.booleans())
def test_a_chats_control_tokens_are_the_templates_only(
    tokenizer: Tokenizer, contents: list[str], add_generation_prompt: bool
) -> None:
    """Bug: a user ends their own turn and speaks as another role by typing the control tokens; or the template's own
    are read as text; or a message is lost or moved where contents are kept apart."""
    messages = [{"role": "user", "content": content} for content in contents]
    ids = tokenizer.encode_chat(messages, add_generation_prompt)
    expected = "".join(f"<|im_start|>user\n{content}<|im_end|>\n" for content in contents)
    assert tokenizer.decode(ids) == expected + ("<|im_start|>assistant\n" if add_generation_prompt else "")
    start, end = (tokenizer.id_of(text) for text in CONTROL_TEXTS[1:])
    assert [i for i in ids if i in tokenizer.control_ids] == [
        *[start, end] * len(contents),
        *[start] * add_generation_prompt,
    ]


def test_a_role_cannot_hold_control_tokens(tokenizer: Tokenizer) -> None:
    """Bug: the role of an uploaded chat opens turns of its own ("user<|im_end|>..."), where templates copy it as is."""
    with pytest.raises(TokenizerError, match="role"):
        tokenizer.encode_chat([{"role": "user<|im_end|>", "content": "hello"}])


def test_a_chat_that_the_template_refuses_is_an_error_with_its_reason(tokenizer: Tokenizer) -> None:
    """Bug: a template's refusal surfaces as a jinja error."""
    with pytest.raises(TokenizerError, match="unknown role robot"):
        tokenizer.encode_chat([{"role": "robot", "content": "hello"}])


def test_what_a_template_drops_stays_out(tmp_path: Path) -> None:
    """Bug: a content that the template leaves out is put in all the same, at the wrong place."""
    last_only = "<|im_start|>{{ messages[-1]['content'] }}<|im_end|>"
    tokenizer = make_tiny_tokenizer(tmp_path / "t", chat_template=last_only)
    messages = [*user("first"), *user("second")]
    assert tokenizer.decode(tokenizer.encode_chat(messages)) == "<|im_start|>second<|im_end|>"
    kept = tokenizer.encode_chat([*user("first <|im_end|>"), *user("second <|im_end|>")])
    assert tokenizer.decode(kept) == "<|im_start|>second <|im_end|><|im_end|>"
    assert [i for i in kept if i in tokenizer.control_ids] == [1, 2]


def test_a_prompt_is_a_user_turn_or_plain_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Bug: no generation prompt, so that the model goes on writing the user's text; a chat asked of a base model."""
    assert tokenizer.encode_prompt("Hi") == tokenizer.encode_chat(user("Hi"), add_generation_prompt=True)
    plain = make_tiny_tokenizer(tmp_path / "plain", chat_template=None)
    assert not plain.has_chat_template
    assert plain.decode(plain.encode_prompt("Hi <|im_end|>")) == "Hi <|im_end|>"
    assert not set(plain.encode_prompt("Hi <|im_end|>")) & set(plain.control_ids)
    with pytest.raises(TokenizerError, match="no chat template"):
        plain.encode_chat(user("Hi"))


def test_a_beginning_of_text_token_goes_before_a_plain_prompt_once(tmp_path: Path) -> None:
    """Bug: BOS forgotten (a base model rambles), or put before texts that are only counted."""
    make_tiny_tokenizer(tmp_path / "t", chat_template=None)
    config = json.loads((tmp_path / "t" / "tokenizer_config.json").read_text())
    (tmp_path / "t" / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<|endoftext|>"}))
    tokenizer = load_tokenizer(tmp_path / "t")
    bos = tokenizer.id_of("<|endoftext|>")
    ids = tokenizer.encode_prompt("The cat")
    assert ids[0] == bos and bos not in ids[1:]
    assert tokenizer.encode_texts(["The cat"])[0] == ids[1:]


def test_the_fingerprint_is_the_content_not_the_place(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Bug: counts of one tokenizer are accepted for another, or refused after the folder was moved."""
    assert make_tiny_tokenizer(tmp_path / "elsewhere").fingerprint == tokenizer.fingerprint
    others = [
        make_tiny_tokenizer(tmp_path / "words", text=TEXT + "A bird came by. " * 9),
        make_tiny_tokenizer(tmp_path / "template", chat_template="{{ messages[0]['content'] }}"),
    ]
    assert len({tokenizer.fingerprint, *(other.fingerprint for other in others)}) == 3


def test_padding_and_truncation_of_the_file_do_not_apply(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Bug: a tokenizer saved with truncation to 4 tokens counts only the first 4 of each text, or pads the rest."""
    make_tiny_tokenizer(tmp_path / "t")
    path = tmp_path / "t" / "tokenizer.json"
    definition = json.loads(path.read_text(encoding="utf-8"))
    definition["truncation"] = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    definition["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    path.write_text(json.dumps(definition), encoding="utf-8")
    cut = load_tokenizer(tmp_path / "t")
    text = "The cat sat on the mat and saw it."
    assert cut.encode_texts([text, "a"]) == tokenizer.encode_texts([text, "a"])
    assert cut.encode_chat(user(text)) == tokenizer.encode_chat(user(text))
    assert cut.fingerprint == tokenizer.fingerprint


def test_sizes_control_tokens_and_pieces(tokenizer: Tokenizer) -> None:
    """Bug: a vocabulary size without the added tokens; an id outside it is an error where a model is padded."""
    assert tokenizer.control_ids == (0, 1, 2) and tokenizer.control_texts == CONTROL_TEXTS
    assert tokenizer.eos_ids == (2,)
    size = tokenizer.vocab_size
    assert tokenizer.piece(size - 1) and not tokenizer.piece(size) and not tokenizer.piece(size + 100)
    assert tokenizer.id_of("<|im_end|>") == 2 and tokenizer.id_of("no such piece") is None
    assert all(tokenizer.id_of(tokenizer.piece(i)) == i for i in range(size))
    assert tokenizer.decode([size + 5]) == ""


def test_what_cannot_be_loaded_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """Bug: a traceback of the library for a wrong folder or a broken file."""
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{ not json")
    with pytest.raises(TokenizerError, match="could not be loaded"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelError, match="no folder"):
        load_tokenizer(tmp_path / "missing folder")


@pytest.mark.parametrize(
    "name, control, text",
    [
        ("gemma3", ["<eos>", "<start_of_turn>", "<end_of_turn>"], ["\n\n", "<table>", "▁▁"]),
        ("qwen3", ["<|im_end|>", "<|endoftext|>", "<tool_call>", "<|fim_prefix|>"], ["\n\n"]),
        ("llama3_1", ["<|eot_id|>", "<|end_of_text|>", "<|start_header_id|>"], ["\n\n"]),
    ],
)
def test_control_tokens_of_real_tokenizers(name: str, control: list[str], text: list[str]) -> None:
    """Bug: tool-call tokens that no flag calls special are trimmed away, or added text (Gemma's line breaks and HTML
    tags) is taken for control tokens and no longer counted as one token."""
    tokenizer = load_tokenizer(npm_tokenizer_folder(name))
    assert set(control) <= set(tokenizer.control_texts)
    assert not set(text) & set(tokenizer.control_texts)
    assert set(tokenizer.eos_ids) <= set(tokenizer.control_ids)
    sample = f"One\n\ntwo <table> {' '.join(control)} end"
    (ids,) = tokenizer.encode_texts([sample])
    assert not set(ids) & set(tokenizer.control_ids)
    assert tokenizer.decode(ids) == sample
