"""Text in which an answer repeats what its prompt quotes: to train the copying of drafters on.

    python data/drafters/copied_text.py TARGET_FOLDER DOCUMENTS.jsonl OUT.jsonl.gz [--n 750]

A target often quotes its prompt, or falls into a loop, and then every token is to be had from the context. In text that
it wrote for other prompts that is rare; here an answer is the quoted passage itself, sometimes twice, whatever the
target would have said: its labels (teacher.py) are what it thinks at every place of it. DOCUMENTS.jsonl is what
documents.py writes. Rows are as write_text.py's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from training_prompts import INTO_ENGLISH, Quotable, read_documents

from vocabtrim_core.tokenization import load_tokenizer

ASKED = (
    "Repeat the following text word for word.\n\n{text}",
    "Copy this text: {text}",
    "{text}\n\nWrite the text above once more.",
    "Read this aloud: {text}",
    "Correct the mistakes in this text, if there are any.\n\n{text}",
    "Type out the following passage: {text}",
)
OPENINGS = ("", "", '"', "The text is: ")
LENGTHS = (100, 420)
SHORTEST = 40
TWICE_SHARE = 0.3
ANSWER_TOKENS = 160


def copies(n: int, quotable: Quotable, seed: int = 5) -> Iterator[tuple[str, str]]:
    """Prompts with answers. Of four prompts two quote German, and one of these asks for a translation, in vain."""
    rng = random.Random(seed)
    for i in range(n):
        asked: Sequence[str] = INTO_ENGLISH if i % 4 == 1 else ASKED
        text = ""
        while len(text) < SHORTEST:
            if i % 2:
                text = rng.choice(quotable.german)
            else:
                text = rng.choice(rng.choice(quotable.english).split("\n\n"))[: rng.randint(*LENGTHS)]
        answer = rng.choice(OPENINGS) + text
        if rng.random() < TWICE_SHARE:
            answer += " " + text
        yield rng.choice(asked).format(source="German", text=text), answer


def main(arguments: argparse.Namespace) -> None:
    tokenizer = load_tokenizer(arguments.target)
    with gzip.open(arguments.out, "wt", encoding="utf-8") as out:
        for prompt, answer in copies(arguments.n, read_documents(arguments.documents)):
            answer_ids = tokenizer.encode_texts([answer])[0][:ANSWER_TOKENS]
            row = {"task": "copying", "temperature": 1.0, "prompt_ids": tokenizer.encode_prompt(prompt)}
            out.write(json.dumps(row | {"answer_ids": answer_ids}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("documents", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=750)
    main(parser.parse_args())
