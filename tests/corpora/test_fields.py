"""Records: the right field is found or can be chosen, and chats of both common forms become the same messages."""

import json

import pytest

from vocabtrim_core.corpora import BadRecord, CorpusFile, Document, ReadingOptions, read_documents
from vocabtrim_core.errors import CorpusError

CHAT = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})


def read_one(record: object, **options: str) -> Document:
    """The document of one record; a bad one is an error with its reason."""
    file = CorpusFile("a.jsonl", json.dumps(record).encode())
    (document,) = read_documents(file, lambda bad: None, ReadingOptions(**options))  # type: ignore[arg-type]
    return document


def reason_of(record: object, **options: str) -> str:
    with pytest.raises(CorpusError) as caught:
        read_one(record, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["text", "content", "body", "code", "document", "Text", "CONTENT"])
def test_text_fields(name: str) -> None:
    """Bug: a usual name of the field with the text is not known."""
    assert read_one({"id": "x", name: "words", "title": "no"}).text == "words"


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [*CHAT], "text": "no"},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        {"conversation": [{"from": "user", "value": "Hi"}, {"from": "Assistant", "value": "Hello"}]},
        {"conversations": [*CHAT]},
        {"messages": [CHAT[0], {**CHAT[1], "weight": 1, "name": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image_url"}]}, CHAT[1]]},
        {"prompt": "Hi", "response": "Hello", "id": 3},
        {"prompt": [CHAT[0]], "completion": [CHAT[1]]},
        {"instruction": "Hi", "input": "", "output": "Hello"},
        {"question": "Hi", "answer": "Hello"},
        {"Question": "Hi", "Answer": "Hello"},
        {"messages": json.dumps([*CHAT])},
        {"messages": None, "prompt": "Hi", "response": "Hello"},
    ],
)
def test_chats(record: dict) -> None:
    """Bug: a common form of a chat is refused, or loses a turn."""
    assert read_one(record).messages == CHAT


def test_sharegpt_roles() -> None:
    """Bug: system prompts and tools of ShareGPT chats are left out, or given roles that no template knows."""
    speakers = ["system", "human", "gpt", "function_call", "observation", "chatgpt"]
    document = read_one({"conversations": [{"from": speaker, "value": "x"} for speaker in speakers]})
    roles = [message["role"] for message in document.messages or ()]
    assert roles == ["system", "user", "assistant", "assistant", "tool", "assistant"]
    assert "unknown speaker (“narrator”)" in reason_of({"conversations": [{"from": "narrator", "value": "x"}]})


def test_system_field() -> None:
    """Bug: a system prompt beside the chat is lost, or doubled where the chat has one itself."""
    system = {"role": "system", "content": "Be brief."}
    assert read_one({"system": "Be brief.", "conversations": [*CHAT]}).messages == (system, *CHAT)
    assert read_one({"system": "Be brief.", "messages": [system, *CHAT]}).messages == (system, *CHAT)
    assert read_one({"system": " ", "messages": [*CHAT]}).messages == CHAT


def test_instruction_with_input() -> None:
    """Bug: the input of an Alpaca record is lost."""
    messages = read_one({"instruction": "Translate.", "input": "Hallo", "output": "Hello"}).messages
    assert messages == ({"role": "user", "content": "Translate.\n\nHallo"}, CHAT[1])


@pytest.mark.parametrize(
    "field, text",
    [("mine", "a"), ("deep.er", "b"), ("dot.ted", "c"), ("deep", None)],
)
def test_chosen_text(field: str, text: str | None) -> None:
    """Bug: the user's choice is overruled by a known name, or does not reach into a record."""
    record = {"text": "no", "mine": "a", "deep": {"er": "b"}, "dot.ted": "c"}
    if text is None:
        assert "`deep` is not a string" in reason_of(record, field=field)
    else:
        assert read_one(record, field=field).text == text


@pytest.mark.parametrize("field", ["log", "request.messages", "ask+reply", "in.ask+in.reply"])
def test_chosen_chats(field: str) -> None:
    """Bug: a chat under another name cannot be chosen."""
    pair = {"ask": "Hi", "reply": "Hello"}
    record = {"text": "no", "log": [*CHAT], "request": {"messages": [*CHAT]}, "in": pair, **pair}
    assert read_one(record, field=field).messages == CHAT


@pytest.mark.parametrize(
    "record, options, reason",
    [
        ({"title": "x", "n": 1}, {}, "it has `title`, `n`; choose one"),
        ({}, {}, "it has none"),
        ({f"f{n}": n for n in range(20)}, {}, "and 12 more"),
        ({"text": "x"}, {"field": "body"}, "no field `body`; it has `text`"),
        ({"text": "x"}, {"field": "a+b"}, "no field `a+b`"),
        ({"text": 5}, {}, "`text` is not a string"),
        ({"messages": "not JSON"}, {}, "`messages` is not a list of messages"),
        ({"messages": "[not JSON"}, {}, "`messages` is not valid JSON"),
        ({"messages": [{"role": "user", "content": 5}]}, {}, "content of message 1 is not a string"),
        ({"messages": [{"role": "user", "content": [5]}]}, {}, "not text, nor a list of parts"),
        ({"messages": [CHAT[0]]}, {"roles": "assistant"}, "no message is the assistant's"),
        ({"prompt": "x", "response": " "}, {}, "`response` is empty"),
    ],
)
def test_reasons(record: dict, options: dict, reason: str) -> None:
    """Bug: a record that cannot be used is dropped without saying which field is wrong, or what there is to choose."""
    assert reason in reason_of(record, **options)


@pytest.mark.parametrize("newlines, expected", [("lf", "a\nb\nc"), ("keep", "a\r\nb\rc")])
def test_line_ends(newlines: str, expected: str) -> None:
    """Bug: the choice of line ends holds for plain text files only, or not inside of chats."""
    assert read_one({"text": "a\r\nb\rc"}, newlines=newlines).text == expected
    (message,) = read_one({"messages": [{"role": "user", "content": "a\r\nb\rc"}]}, newlines=newlines).messages or ()
    assert message["content"] == expected
    file = CorpusFile("a.txt", b"a\r\nb\rc")
    (document,) = read_documents(file, print, ReadingOptions(newlines=newlines))  # type: ignore[arg-type]
    assert document.text == expected


def test_reports_name_file_and_line() -> None:
    """Bug: a report that a person cannot follow to the record."""
    assert BadRecord("logs/a.jsonl", 7, "x").where == "logs/a.jsonl:7"
    assert BadRecord("logs/a.jsonl", 0, "x").where == "logs/a.jsonl"
