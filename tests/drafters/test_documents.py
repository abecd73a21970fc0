"""Text from other packages, as training prompts and copied answers quote it."""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "data" / "drafters"))

from copied_text import copies
from documents import GERMAN_LENGTHS, HANDBOOK, SAYINGS, brown, handbook, pieces, sayings
from training_prompts import Quotable


def test_brown_without_its_tags(tmp_path: Path) -> None:
    """Bug: tags stay in the text, a slash inside a word cuts it, punctuation stands apart, notes become samples."""
    tagged = (
        "\n\n\tThe/at jury/nn said/vbd ``/`` no/at 1/2/cd evidence/nn ''/'' ,/, (/( not/* yet/rb )/) ./. \n\n"
        "\tWhy/wrb ?/. ?/.\n"
    )
    (tmp_path / "ca01").write_text(tagged)
    (tmp_path / "cats.txt").write_text("ca01 news")
    assert list(brown(tmp_path)) == ['The jury said "no 1/2 evidence", (not yet). Why?']


def test_handbook_paragraphs(tmp_path: Path) -> None:
    """Bug: headings and menus are quoted as text, or what is in a link is lost."""
    folder = tmp_path / HANDBOOK / "en-US"
    folder.mkdir(parents=True)
    long = "A paragraph of <a href='x'>some</a>\n length, about a package manager."
    (folder / "page.html").write_text(
        f"<html xmlns='http://www.w3.org/1999/xhtml'><body><h1>Menu</h1><div class='para'>{long}</div>"
        "<div class='para'>Short.</div><div class='other'>No paragraph of the text, though long</div></body></html>"
    )
    (folder / "empty.html").write_text("<html xmlns='http://www.w3.org/1999/xhtml'><body/></html>")
    assert list(handbook(tmp_path, "en-US")) == ["A paragraph of some length, about a package manager."]


def test_sayings_without_names(tmp_path: Path) -> None:
    """Bug: the name of who said it is taken for its last sentence."""
    (tmp_path / SAYINGS).mkdir(parents=True)
    (tmp_path / SAYINGS / "zitate.u8").write_text(
        "Morgen ist\nauch ein Tag.\n\t\t-- Jemand\n%\nGut so.\n   -- Er\n", encoding="utf-8"
    )
    assert list(sayings(tmp_path)) == ["Morgen ist auch ein Tag.", "Gut so."]


def test_pieces_are_whole_sentences() -> None:
    """Bug: a piece ends inside a sentence, or sentences are lost between two."""
    text = " ".join(f"Dies ist der Satz mit der Nummer {i} und noch etwas mehr." for i in range(60))
    found = list(pieces(text, random.Random(0)))
    assert len(found) > 5
    assert text.removeprefix(" ".join(found)).count("Satz") <= 1
    assert all(piece.endswith(".") and len(piece) >= GERMAN_LENGTHS[0] for piece in found)
    assert list(pieces("Kurz. " + text[:70], random.Random(0))) == ["Kurz. " + text[:70]]


def test_copies_quote_their_prompt() -> None:
    """Bug: the answer is of another text than the prompt, so that there is nothing to copy."""
    quotable = Quotable(
        [f"An English text about the number {i}, " * 8 for i in range(9)],
        ["Dies ist ein Satz, der lang genug ist, um ihn zu lesen.", "Satz."],
    )
    rows = list(copies(40, quotable))
    assert len(rows) == 40
    for prompt, answer in rows:
        quoted = answer.removeprefix("The text is: ").removeprefix('"')
        assert quoted in prompt or quoted[: len(quoted) // 2] in prompt
    assert any(answer.count("number") > prompt.count("number") for prompt, answer in rows)
    assert sum("Satz" in answer for _, answer in rows) == 20
