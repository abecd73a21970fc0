"""Chat templates of every kind: what the model wrote is found, and control-token text is token or text by rule."""

from pathlib import Path

import pytest

from tests.tiny_tokenizer import CHAT_TEMPLATE, make_tiny_tokenizer
from vocabtrim_core.chat_templates import Rendering
from vocabtrim_core.errors import TokenizerError
from vocabtrim_core.tokenization import Tokenizer

END = "<|im_end|>"
USER = {"role": "user", "content": f"Hi {END}"}
CAT = {"role": "assistant", "content": " The cat\n"}
DOG = {"role": "assistant", "content": "The dog"}
CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
}
RESULT = {"role": "tool", "content": "7"}

# Turns end with EOS, and no generation prompt says where they start; calls go in without their message.
NO_HEADER = (
    "{{ '<|endoftext|>' }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}[R]{{ m.content }}[/R]{% elif m.tool_calls is defined %}"
    "[TOOL_CALLS] {% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}<|im_end|>"
    "{% else %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n{% generation %}{{ m.content }}"
    "<|im_end|>\n{% endgeneration %}{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}"
)
MARKED_WITHOUT_END = MARKED.replace("<|im_end|>\n{% endgeneration %}", "{% endgeneration %}<|im_end|>\n")
WORDS = (
    "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} {% else %}ASSISTANT: {{ m.content }}"
    "<|im_end|>{% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
MERGING = (
    "{% for m in messages %}{% if loop.first or m.role != messages[loop.index0-1].role %}<|im_start|>{{ m.role }}\n"
    "{% endif %}{{ m.content }}{% if loop.last or m.role != messages[loop.index0+1].role %}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TRIMMING = CHAT_TEMPLATE.replace("{{ message['content'] }}", "{{ message['content'] | trim }}")
DROPPING = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}"
)


def tokenizer_with(folder: Path, template: str) -> Tokenizer:
    return make_tiny_tokenizer(folder / "t", chat_template=template)


@pytest.mark.parametrize(
    "template, chat, expected",
    [
        (NO_HEADER, [USER, CAT, USER, DOG], [" The cat\n", "The dog"]),
        (NO_HEADER, [USER, CALLING, RESULT, CAT], ['[TOOL_CALLS] {"name": "f", "arguments": {"a": 1}}', " The cat\n"]),
        (MARKED, [USER, CAT, USER, DOG], [" The cat\n", "The dog"]),
        (MARKED_WITHOUT_END, [USER, CAT, USER, DOG], [" The cat\n", "The dog"]),
        (WORDS, [USER, CAT, USER, DOG], [" The cat\n", "The dog"]),
        (MERGING, [USER, CAT, USER, DOG], [" The cat\n", "The dog"]),
        (MERGING, [USER, CAT, DOG], [" The cat\nThe dog"]),
        (TRIMMING, [USER, CAT, USER, DOG], ["The cat", "The dog"]),
    ],
)
def test_what_the_model_wrote(tmp_path: Path, template: str, chat: list[dict], expected: list[str]) -> None:
    """Bug: words of the template are counted as the model's, or a space or a turn is lost; a user who types the end of
    a turn ends the model's."""
    _, written = tokenizer_with(tmp_path, template).template.written(chat)
    assert [turn.body.text for turn in written] == expected
    assert [turn.end for turn in written] == [END] * len(expected)


def test_a_template_without_the_assistants_turns_is_refused(tmp_path: Path) -> None:
    """Bug: nothing is counted for a chat whose answers the template drops, without a word."""
    with pytest.raises(TokenizerError, match="turn by turn"):
        tokenizer_with(tmp_path, DROPPING).template.written([USER, DOG])


def test_who_types_a_control_token_decides(tmp_path: Path) -> None:
    """Bug: `<|endoftext|>`, which frames no turn, is text where a model writes it, or a token where a user does; a
    turn of a model ends at the characters of its own end."""
    tokenizer = tokenizer_with(tmp_path, CHAT_TEMPLATE)
    typed = f"a <|endoftext|> {END} b"
    chat = [{"role": role, "content": typed} for role in ("user", "assistant")]
    control = [i for i in tokenizer.encode_chat(chat) if i in tokenizer.control_ids]
    inner, start, end = tokenizer.control_ids
    assert control == [start, end, start, inner, end]
    (turn,) = tokenizer.template.written(chat)[1]
    assert turn.body.text == typed and [turn.body.text[a:b] for a, b in turn.body.typed] == [END]
    assert [i for i in tokenizer.encode_rendering(turn.body) if i in tokenizer.control_ids] == [inner]


def test_pieces_keep_every_character(tmp_path: Path) -> None:
    """Bug: text between control tokens is lost or doubled where some of them are text."""
    template = tokenizer_with(tmp_path, CHAT_TEMPLATE).template
    text = f"{END}a{END}b {END}c{END}"
    for typed in ((), ((0, 10),), ((11, 21),), ((11, 21), (23, 33)), ((0, 10), (34, 44))):
        pieces = template.pieces(Rendering(text, typed))
        assert "".join(piece for piece, _ in pieces) == text
        assert any(as_text for _, as_text in pieces) == bool(typed)


def test_arguments_as_text_are_not_quoted_twice(tmp_path: Path) -> None:
    """Bug: a template that turns arguments to JSON gets JSON text, and the model's words are full of backslashes."""
    tokenizer = tokenizer_with(tmp_path, NO_HEADER)
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    text = tokenizer.template.render([USER, {**CALLING, "tool_calls": [call]}])
    assert '{"name": "f", "arguments": {"a": 1}}' in text
