"""Make `chat.jsonl`, a sample corpus of chats, from text that the embedded target generated.

    PYTHONPATH=. python data/corpora/make_chat.py TOKENIZER_FOLDER

Takes the same number of chats of every kind of task, chosen by a hash of their ids, each with another prompt.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from pathlib import Path

from vocabtrim_core.tokenization import Tokenizer, load_tokenizer

GENERATED = Path(__file__).parent.parent / "target_generated.jsonl.gz"
CHATS_PER_TASK = 86
PROMPT_START, PROMPT_END = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n"


def chat_of(record: dict, tokenizer: Tokenizer) -> dict:
    """The record's prompt and answer as a chat of two messages, without the control tokens."""
    prompt = tokenizer.decode(record["prompt_ids"]).removeprefix(PROMPT_START).removesuffix(PROMPT_END)
    answer = tokenizer.decode(i for i in record["answer_ids"] if i not in tokenizer.control_ids)
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
    return {"task": record["task"], "messages": messages}


def main(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    with gzip.open(GENERATED, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    records.sort(key=lambda record: hashlib.sha256(json.dumps(record).encode()).digest())
    taken: dict[str, list[dict]] = {record["task"]: [] for record in records}
    prompts = set()
    for record in records:
        chats, prompt = taken[record["task"]], tuple(record["prompt_ids"])
        if len(chats) < CHATS_PER_TASK and prompt not in prompts:
            prompts.add(prompt)
            chats.append(chat_of(record, tokenizer))
    with (Path(__file__).parent / "chat.jsonl").open("w", encoding="utf-8", newline="\n") as out:
        # One of each task in turn, so that the first lines already show all of them.
        for group in zip(*(taken[task] for task in sorted(taken)), strict=True):
            out.writelines(json.dumps(chat, ensure_ascii=False) + "\n" for chat in group)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer_folder", type=Path)
    main(parser.parse_args().tokenizer_folder)
