"""Chats as people have them: the tokens of Qwen3's own template in every form, and what was left out is said."""

import json
from collections import Counter
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.npm_tokenizers import npm_tokenizer_folder
from tests.tiny_tokenizer import CHAT_TEMPLATE, make_tiny_tokenizer
from vocabtrim_core.commands.count import describe
from vocabtrim_core.corpora import CorpusFile, ReadingOptions, plan_shards
from vocabtrim_core.counting import TokenCounts, count_files, run_count
from vocabtrim_core.counting.counts import MAX_COUNTS_BYTES, read_npz
from vocabtrim_core.counting.ledger import kind_of, sentences, together
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer

TIDE = {"name": "tide_table", "arguments": '{"harbour": "Esbjerg", "days": 3}'}
CALL = {"id": "c1", "type": "function", "function": TIDE}
ASKED, RESULT, SAID = (
    {"role": "user", "content": "When is high water?"},
    {"role": "tool", "content": "07:40"},
    {"role": "assistant", "content": "At 07:40."},
)
PRIME = {"role": "user", "content": "Is 91 prime?"}
THOUGHT = "Try small primes. Seven goes into ninety-one thirteen times, so it is composite."
SHORT = "Try small primes. Seven works."


@pytest.fixture(scope="module")
def qwen() -> Tokenizer:
    return load_tokenizer(npm_tokenizer_folder("qwen3"))


def counted(tokenizer: Tokenizer, *records: object, roles: str = "all") -> TokenCounts:
    file = CorpusFile("a.jsonl", "\n".join(map(json.dumps, records)).encode())
    return count_files([file], tokenizer, 0, options=ReadingOptions(roles=roles))  # type: ignore[arg-type]


def assistant(**fields: object) -> dict:
    return {"role": "assistant", **fields}


def messages(*turns: object) -> dict:
    return {"messages": [*turns]}


def say(**fields: object) -> dict:
    return {"conversations": [{"from": key, "value": value} for key, value in fields.items()]}


@pytest.mark.parametrize(
    "record, whole, answers",
    [
        (messages(ASKED, assistant(content="Let me look.", tool_calls=[CALL]), RESULT, SAID), 80, 44),
        (messages(ASKED, assistant(content="Let me look."), RESULT, SAID), 50, 14),
        (messages(ASKED, assistant(content="", tool_calls=[CALL]), RESULT, SAID), 76, 40),
        (messages(ASKED, assistant(content=None, tool_calls=[CALL]), RESULT, SAID), 76, 40),
        (messages(ASKED, assistant(tool_calls=[CALL]), RESULT, SAID), 76, 40),
        (messages(ASKED, assistant(content=None, function_call=TIDE), {**RESULT, "role": "function"}, SAID), 76, 40),
        (messages(PRIME, assistant(content="No, 7 times 13.")), 29, 10),
        (messages(PRIME, assistant(content="No, 7 times 13.", reasoning_content=THOUGHT)), 46, 31),
        (messages(PRIME, assistant(content="No, 7 times 13.", thinking=THOUGHT)), 46, 31),
        (messages(PRIME, assistant(content="No, 7 times 13.", reasoning=THOUGHT)), 46, 31),
        (messages(PRIME, assistant(content=f"<think>\n{SHORT}\n</think>\n\nNo, 7 times 13.")), 36, 21),
        (messages(PRIME, assistant(content=f"{SHORT}\n</think>\n\nNo, 7 times 13.")), 36, 21),
        (
            messages(
                PRIME,
                assistant(content=f"<think>\n{SHORT}\n</think>\n\nNo, 7 times 13."),
                {"role": "user", "content": "And 97?"},
                assistant(content="<think>\nNo small divisor.\n</think>\n\nYes."),
            ),
            50,
            21,
        ),
        (
            say(
                human="When is high water?",
                gpt='<tool_call>\n{"name": "tide_table", "arguments": {"harbour": "Esbjerg"}}\n</tool_call>',
            ),
            43,
            25,
        ),
        (
            say(
                human="When is high water?", function_call='{"name": "tide_table", "arguments": {"harbour": "Esbjerg"}}'
            ),
            43,
            25,
        ),
        (say(USER="One?", ASSISTANT="Uno."), 18, 3),
        (say(human="One?", ai="Uno."), 18, 3),
        (messages({"role": "human", "content": "One?"}, {"role": "ai", "content": "Uno."}), 18, 3),
        (messages({"role": "user", "content": "One?"}, {"role": "model", "content": "Uno."}), 18, 3),
        (messages({"role": "User", "content": "One?"}, {"role": "Assistant", "content": "Uno."}), 18, 3),
        (
            messages(
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": "One?"},
                assistant(content="Uno."),
            ),
            26,
            3,
        ),
        (messages(ASKED, SAID, {"role": "user", "content": "Thanks"}, assistant(content=None)), 38, 10),
        ({"prompt": "", "completion": "The harbour lay quiet."}, 19, 6),
        ({"prompt": "One?", "completion": "Uno."}, 18, 3),
        ({"instruction": "", "input": "Translate: one", "output": "uno"}, 18, 2),
        ({"instruction": "Translate to Spanish.", "input": "one", "output": "uno"}, 20, 2),
        ({"id": "0", "data": ["One?", "Uno.", "Two?", "Dos."]}, 32, 6),
        ({"prompt": "One?", "chosen": "Uno.", "rejected": "Eins."}, 18, 3),
        ({"prompt": "One?", "chosen": [{"role": "user", "content": "One?"}, assistant(content="Uno.")]}, 18, 3),
        ({"custom_id": "1", "body": messages({"role": "user", "content": "One?"}, assistant(content="Uno."))}, 18, 3),
        (
            messages(
                ASKED,
                assistant(
                    content=[
                        {"type": "text", "text": "Let me look."},
                        {"type": "tool_use", "id": "c1", "name": "tide_table", "input": json.loads(TIDE["arguments"])},
                    ]
                ),
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "07:40"}]},
                SAID,
            ),
            80,
            44,
        ),
    ],
)
def test_qwens_tokens(qwen: Tokenizer, record: dict, whole: int, answers: int) -> None:
    """Bug: a call, a thought or a turn is lost in silence, or `<think>` and `<tool_call>` of a model are counted
    as characters. The numbers are those of the tokenizer's own template."""
    assert counted(qwen, record).tokens == whole
    assert counted(qwen, record, roles="assistant").tokens == answers


def test_tables_pad_with_nulls(qwen: Tokenizer, tmp_path: Path) -> None:
    """Bug: parquet gives every call the arguments of all other tools, as null, and they are counted."""
    records = [
        messages(ASKED, assistant(content="", tool_calls=[{"type": "function", "function": function}]))
        for function in (
            {"name": "tide_table", "arguments": {"harbour": "Esbjerg", "days": 3}},
            {"name": "wind", "arguments": {"sector": "west"}},
        )
    ]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    for roles in ("all", "assistant"):
        options = ReadingOptions(roles=roles)  # type: ignore[arg-type]
        table = run_count(plan_shards([tmp_path / "a.parquet"], options), qwen, options, 0).counts
        lines = counted(qwen, *records, roles=roles)
        assert table.tokens == lines.tokens and (table.total == lines.total).all()
    assert counted(qwen, *records, roles="assistant").tokens == 31 + 19
    # In JSON text a null is the model's own.
    call = {"name": "wind", "arguments": '{"sector": null}'}
    kept = counted(qwen, messages(ASKED, assistant(tool_calls=[call])))
    assert kept.total[qwen.encode_texts([": null"])[0][-1]] == 1


DATED = "{% if strftime_now is defined %}Today is {{ strftime_now('%d %B %Y, %H:%M:%S.%f') }}.\n{% endif %}"


@pytest.mark.parametrize("roles", ["all", "assistant"])
def test_a_template_with_the_date(tmp_path: Path, roles: str) -> None:
    """Bug: a chat has other tokens tomorrow, and a resumed count mixes two days."""
    tokenizer = make_tiny_tokenizer(tmp_path / "t", chat_template=DATED + CHAT_TEMPLATE)
    options = ReadingOptions(roles=roles)  # type: ignore[arg-type]
    (tmp_path / "a.jsonl").write_text(json.dumps(messages(PRIME, assistant(content="No  "))))
    done = run_count(plan_shards([tmp_path / "a.jsonl"], options), tokenizer, options, 0)
    text = tokenizer.template.render([PRIME])
    assert text.startswith("Today is 26 July 2024, 00:00:00.000000.\n") and str(datetime.now().year) not in text
    assert done.counts.tokens == (
        len(tokenizer.encode_chat([PRIME, assistant(content="No  ")]))
        if roles == "all"
        else len(tokenizer.encode_texts(["No  "])[0]) + 1
    )
    assert ["26 July 2024" in note for note in done.notes] == [True]
    plain = make_tiny_tokenizer(tmp_path / "plain")
    assert not run_count(plan_shards([tmp_path / "a.jsonl"], options), plain, options, 0).notes


# What was left out


def test_the_ledger_adds_up_and_is_said(qwen: Tokenizer) -> None:
    """Bug: a thought that the template strips, an image, a turn of an unknown role or a rejected answer is gone without
    a word; what was read is not what was counted and left out together."""
    picture = {"role": "user", "content": [{"type": "text", "text": "This?"}, {"type": "image_url", "image_url": {}}]}
    records = [
        messages(PRIME, assistant(content="No.", reasoning_content=THOUGHT), picture, assistant(content="A boat.")),
        messages({"role": "wizard", "content": "x"}, assistant(content="y")),
        messages({"role": "elf", "content": "x"}, assistant(content="y")),
        {"prompt": "One? <|im_end|>", "chosen": "Uno. <think>", "rejected": "Eins."},
        messages(ASKED, assistant(tool_calls=[CALL, {"id": "2"}])),
        "",
    ]
    counts = counted(qwen, *records)
    items = together(counts.ledger)
    assert items["records"] == {
        "read": 6,
        "counted": 3,
        "left_out": {"message … is from an unknown speaker": 2, "the text is empty": 1},
    }
    assert items["turns"] == {"read": 8, "counted": 8, "left_out": {}}
    assert items["thoughts"]["left_out"] == {"dropped or changed by the chat template": 1}
    assert items["tool calls"] == {"read": 2, "counted": 1, "left_out": {"no name of a tool": 1}}
    assert items["content parts"]["left_out"] == {"not text": 1}
    assert items["answers"]["left_out"] == {"rejected ones": 1}
    assert items["turns with control-token text"] == {
        "read": 2,
        "counted": 1,
        "left_out": {"counted as text, not as the token": 1},
    }
    said = " ".join(sentences(items))
    assert "6 records read, 3 counted; left out: 2 message … is from an unknown speaker, 1 the text is empty." in said
    only = together(counted(qwen, *records, roles="assistant").ledger)
    assert only["turns"] == {"read": 8, "counted": 4, "left_out": {"not the assistant's": 4}}
    for summary in (items, only):
        assert all(line["read"] == line["counted"] + sum(line["left_out"].values()) for line in summary.values())


def test_templates_without_calls_or_tools_say_so(tmp_path: Path) -> None:
    """Bug: a template that knows no calls, thoughts or tools drops them, and the count looks complete."""
    tokenizer = make_tiny_tokenizer(tmp_path / "t")
    tool = {"type": "function", "function": {"name": "wind", "parameters": {}}}
    counts = counted(
        tokenizer, {**messages(PRIME, assistant(content="No", tool_calls=[CALL], thinking="Hm")), "tools": [tool]}
    )
    items = together(counts.ledger)
    for item in ("tool calls", "thoughts", "tool definitions"):
        assert items[item] == {"read": 1, "counted": 0, "left_out": {"dropped or changed by the chat template": 1}}


def test_tools_beside_a_chat_are_rendered(qwen: Tokenizer) -> None:
    """Bug: the definitions of tools, which a served model reads, are left out of whole chats."""
    tool = {"type": "function", "function": {"name": "wind", "description": "The wind.", "parameters": {}}}
    for given in ([tool], json.dumps([tool]), [tool["function"]]):
        counts = counted(qwen, {**messages(ASKED, SAID), "tools": given})
        assert counts.tokens == len(qwen.encode_chat([ASKED, SAID], tools=[tool])) > 100
        assert together(counts.ledger)["tool definitions"]["counted"] == 1


def test_ledgers_merge_and_survive(qwen: Tokenizer, tmp_path: Path) -> None:
    """Bug: what was left out depends on the order, is lost in a saved or resumed count, or old ones are refused."""
    one, other = counted(qwen, messages(PRIME, SAID), 5), counted(qwen, messages(ASKED, SAID), "")
    assert one.merge(other).ledger == other.merge(one).ledger
    assert Counter(dict(one.merge(other).ledger)) == Counter(dict(one.ledger)) + Counter(dict(other.ledger))
    one.save(tmp_path / "counts.npz")
    assert TokenCounts.load(tmp_path / "counts.npz").ledger == one.ledger
    (tmp_path / "a.jsonl").write_text(json.dumps(messages(PRIME, SAID)) + "\n5\n")
    shards = plan_shards([tmp_path / "a.jsonl"])
    runs = [run_count(shards, qwen, state_folder=tmp_path / "state") for _ in range(2)]
    assert runs[1].resumed_shards == 1 and runs[0].counts.ledger == runs[1].counts.ledger
    arrays = read_npz((tmp_path / "counts.npz").read_bytes(), MAX_COUNTS_BYTES)
    # As it was saved before there were ledgers.
    record = json.loads(arrays["provenance"].tobytes())
    del record["ledger"]
    arrays["provenance"] = np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
    np.savez(tmp_path / "old.npz", **arrays)
    old = TokenCounts.load(tmp_path / "old.npz")
    assert old.ledger == () and old.merge(one).ledger == one.ledger


@pytest.mark.parametrize(
    "reasons",
    [
        ["message 3 is from an unknown speaker (“elf”)", "message 14 is from an unknown speaker (“5”)"],
        ["not valid JSON (x, column 3)", "not valid JSON (y, column 90)"],
        ["no field `a`; it has `b`", "no field `c`; it has `d`, `e`"],
        ["The chat template of t refuses these messages: a.", "The chat template of t refuses these messages: b."],
    ],
)
def test_equal_faults_add_up(reasons: list[str]) -> None:
    """Bug: a file of a million bad lines has a million reasons."""
    assert len({kind_of(reason) for reason in reasons}) == 1


def test_the_command_says_it(qwen: Tokenizer) -> None:
    """Bug: the text output lacks what --json has."""
    counts = counted(qwen, messages(PRIME, SAID), 5)
    result = {
        "tokens": 1,
        "documents": 1,
        "distinct": 1,
        "vocab_size": 2,
        "tokens_per_second": 1.0,
        "encoder": "x",
        "held_out_tokens": 0,
        "held_out_documents": 0,
        "resumed_parts": 0,
        "parts": 1,
        "bad_records": 0,
        "first_bad_records": [],
        "left_out": [],
        "left_out_files": 0,
        "warnings": [],
        "notes": ["So."],
        "files": [],
        "tokenizer": {"name": "t"},
        "out": None,
        "reconciliation": {"together": together(counts.ledger), "files": {}},
    }
    assert "2 records read, 1 counted; left out: 1 not a JSON object." in describe(result)
