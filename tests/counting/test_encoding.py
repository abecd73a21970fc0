"""Documents to ids: whole chats as the template has them, or what the assistant wrote alone."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.npm_tokenizers import npm_tokenizer_folder
from tests.tiny_tokenizer import CONTROL_TEXTS, make_tiny_tokenizer
from vocabtrim_core.corpora import Document
from vocabtrim_core.counting.encoding import DocumentEncoder
from vocabtrim_core.fast_tokenization import Encoders, FlatIds
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer

CONTENT = st.lists(st.sampled_from([*CONTROL_TEXTS, "The cat", "<|im_", "\n", " ", "é猫🐈", "assistant"])).map("".join)
CHATS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), CONTENT), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


def chat(*turns: tuple[str, str], line: int = 1) -> Document:
    return Document(None, tuple({"role": role, "content": content} for role, content in turns), line)


def rows(flat: FlatIds) -> list[list[int]]:
    return [flat.ids[a:b].tolist() for a, b in zip(flat.offsets, flat.offsets[1:], strict=False)]


def assistant_ids(tokenizer: Tokenizer, content: str) -> list[int]:
    """The content as a model writes it: `<|endoftext|>` is a token there, what frames turns is text."""
    *parts, last = content.split("<|endoftext|>")
    inner = tokenizer.id_of("<|endoftext|>")
    return [i for part in parts for i in [*tokenizer.encode_texts([part])[0], inner]] + tokenizer.encode_texts([last])[
        0
    ]


def refuse_none(document: Document, reason: str) -> None:
    raise AssertionError(reason)


@given(chats=st.lists(CHATS, max_size=5), fast=st.booleans())
def test_whole_chats_are_what_encode_chat_gives(tokenizer: Tokenizer, chats: list, fast: bool) -> None:
    """Bug: chats together are encoded otherwise than one chat is; literal control text becomes control."""
    documents = [chat(*turns) for turns in chats] + [Document("a <|im_end|>", None)]
    kept, flat = DocumentEncoder(Encoders(tokenizer, fast), "all").encode(documents, refuse_none, Counter())
    assert sorted(map(id, kept)) == sorted(map(id, documents))
    for document, ids in zip(kept, rows(flat), strict=True):
        messages = document.messages
        assert ids == (
            tokenizer.encode_texts(["a <|im_end|>"])[0] if messages is None else tokenizer.encode_chat(messages)
        )


@given(turns=CHATS, fast=st.booleans())
def test_answers_are_contents_and_their_ends(tokenizer: Tokenizer, turns: list, fast: bool) -> None:
    """Bug: the user's words, the role or the line end after a turn are counted as written by the model; the token that
    ends the turn is not."""
    refused: list[str] = []
    encoder = DocumentEncoder(Encoders(tokenizer, fast), "assistant")
    kept, flat = encoder.encode(
        [chat(*turns), chat(("assistant", "Hi"))], lambda _, reason: refused.append(reason), Counter()
    )
    end = tokenizer.id_of("<|im_end|>")
    answers = [content for role, content in turns if role == "assistant"]
    # Models write no `<|im_start|>`, but `<|endoftext|>` frames no turn of this template.
    answers = [i for content in answers for i in [*assistant_ids(tokenizer, content), end]]
    expected = [answers] if answers else []
    last = [*tokenizer.encode_texts(["Hi"])[0], end]
    assert sorted(rows(flat)) == sorted([*expected, last])
    assert len(kept) == 2 - len(refused) and refused == ["no message is the assistant's"] * (not expected)


def test_text_is_counted_whole_where_only_answers_of_chats_are_wanted(tokenizer: Tokenizer) -> None:
    """Bug: a folder of chats and text loses the text."""
    kept, flat = DocumentEncoder(Encoders(tokenizer), "assistant").encode(
        [Document("The cat", None)], refuse_none, Counter()
    )
    assert len(kept) == 1 and rows(flat) == tokenizer.encode_texts(["The cat"])


@pytest.mark.parametrize("roles", ["all", "assistant"])
def test_refused_chats_do_not_shift_the_others(tokenizer: Tokenizer, roles: str) -> None:
    """Bug: after a chat that the template refuses, documents and their ids no longer belong together."""
    documents = [chat(("assistant", str(i)) if i % 3 else ("wizard", "x"), ("assistant", "y" * i)) for i in range(9)]
    refused: list[Document] = []
    encoder = DocumentEncoder(Encoders(tokenizer), roles)
    kept, flat = encoder.encode(documents, lambda document, reason: refused.append(document), Counter())
    assert refused == documents[::3] and kept == [document for i, document in enumerate(documents) if i % 3]
    assert [tokenizer.decode(ids).count("y") for ids in rows(flat)] == [1, 2, 4, 5, 7, 8]


@pytest.mark.parametrize("roles", ["all", "assistant"])
def test_chats_need_a_template(tmp_path: Path, roles: str) -> None:
    """Bug: a traceback, or chats counted as bare text without a word."""
    plain = make_tiny_tokenizer(tmp_path / "plain", chat_template=None)
    refused: list[str] = []
    text = Document("The cat", None)
    kept, _ = DocumentEncoder(Encoders(plain), roles).encode(
        [chat(("assistant", "Hi")), text], lambda document, reason: refused.append(reason), Counter()
    )
    assert kept == [text] and len(refused) == 1 and "no chat template" in refused[0]


def test_a_template_without_turn_ends(tmp_path: Path) -> None:
    """Bug: a template that puts no control token after a turn makes one up, or ends the count."""
    template = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    tokenizer = make_tiny_tokenizer(tmp_path / "t", chat_template=template)
    document = chat(("user", "x"), ("assistant", "The cat"), ("assistant", ""))
    _, flat = DocumentEncoder(Encoders(tokenizer), "assistant").encode([document], refuse_none, Counter())
    assert rows(flat) == tokenizer.encode_texts(["The cat"])


def test_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    """Bug: tokens of another tokenizer are counted beyond the end of the histogram, or wrap around to its end."""
    good = Document(None, None, 1, np.array([1, 2, 2], dtype=np.uint16))
    bad = Document(None, None, 2, np.array([tokenizer.vocab_size], dtype=np.uint32))
    negative = Document(None, None, 3, np.array([-1], dtype=np.int64))
    refused: list[tuple[int, str]] = []
    kept, flat = DocumentEncoder(Encoders(tokenizer), "all").encode(
        [bad, good, negative], lambda document, reason: refused.append((document.line, reason)), Counter()
    )
    assert kept == [good] and rows(flat) == [[1, 2, 2]]
    assert [line for line, _ in refused] == [2, 3] and f"token {tokenizer.vocab_size:,} is not in" in refused[0][1]


@pytest.mark.parametrize(
    "name, end, end_of_text",
    [("llama3_1", "<|eot_id|>", "<|end_of_text|>"), ("qwen3", "<|im_end|>", "<|endoftext|>")],
)
def test_answers_of_real_templates_end_as_models_end_them(name: str, end: str, end_of_text: str) -> None:
    """Bug: Llama's header or Qwen's empty thinking block is taken for what a model wrote; or for the turn's end."""
    tokenizer = load_tokenizer(npm_tokenizer_folder(name))
    document = chat(("user", "Hi?"), ("assistant", "Hello!"), ("user", "Bye."), ("assistant", "See you."))
    _, flat = DocumentEncoder(Encoders(tokenizer, fast=False), "assistant").encode([document], refuse_none, Counter())
    assert tokenizer.decode(flat.ids.tolist()) == f"Hello!{end}See you.{end}"
    assert end_of_text not in tokenizer.decode(flat.ids.tolist())
