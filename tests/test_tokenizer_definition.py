"""A kept definition is what transformers would make again, and never another tokenizer's."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.npm_tokenizers import PACKAGES, npm_tokenizer_folder
from tests.tiny_tokenizer import CHAT_TEMPLATE, make_tiny_tokenizer
from vocabtrim_core import tokenizer_loading
from vocabtrim_core.embedded import embedded_target_folder
from vocabtrim_core.errors import TokenizerError
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer
from vocabtrim_core.tokenizer_definition import MAX_KEPT, TokenizerDefinition

CHATS = (
    [{"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi \n"}],
    [{"role": "user", "content": "2 + 2"}, {"role": "assistant", "content": "4"}, {"role": "user", "content": "<b>"}],
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


def test_bytes_round_trip(tmp_path: Path) -> None:
    """Bug: a kept tokenizer lacks what it had (ids as lists, a template without its line breaks, letters escaped)."""
    definition = make_tiny_tokenizer(
        tmp_path, text="naïve Ünïcödé 你好 \u2028 \x85", chat_template="a\n{{ 'é' }}\n"
    ).definition
    again = TokenizerDefinition.from_bytes(definition.to_bytes())
    assert vars(again) == vars(definition)


@pytest.mark.usefixtures("cache")
def test_the_second_load_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the cache is written but not read, and every start waits for transformers."""

    def refuse(*_: object) -> TokenizerDefinition:
        raise AssertionError("made again")

    first = make_tiny_tokenizer(tmp_path / "model")
    monkeypatch.setattr(tokenizer_loading, "make_definition", refuse)
    again = load_tokenizer(tmp_path / "model")
    assert vars(again.definition) == vars(first.definition)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"])
def test_a_changed_file_is_another_tokenizer(cache: Path, tmp_path: Path, file: str) -> None:
    """Bug: a tokenizer is read from the cache after one of its files was changed in place."""
    folder = tmp_path / "model"
    make_tiny_tokenizer(folder)
    path = folder / file
    if file == "tokenizer_config.json":
        path.write_text(path.read_text().replace("<|im_start|>{{", "<|im_start|>!{{"))
    elif file == "chat_template.jinja":
        path.write_text("other {{ messages[0]['content'] }}")
    elif file == "tokenizer.json":
        path.write_text(path.read_text().replace('"special": true', '"special": false', 1))
    else:
        path.write_text(json.dumps({"model_type": "llama"}))
    load_tokenizer(folder)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("damage", [b"", b"{}", None])
def test_damage_is_made_good(cache: Path, tmp_path: Path, damage: bytes | None) -> None:
    """Bug: a cache file cut by a full disk, or with a byte changed, breaks later starts or changes the counts."""
    first = make_tiny_tokenizer(tmp_path / "model")
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + b"x" + whole[-8:] if damage is None else damage)
    assert vars(load_tokenizer(tmp_path / "model").definition) == vars(first.definition)
    assert path.read_bytes() == whole


def test_the_cache_is_bounded(cache: Path, tmp_path: Path) -> None:
    """Bug: the cache grows with every tokenizer that was ever loaded."""
    for i in range(MAX_KEPT + 3):
        make_tiny_tokenizer(tmp_path / "model", chat_template=f"{CHAT_TEMPLATE}{i}")
    assert len(list(cache.iterdir())) == MAX_KEPT


def test_without_a_place_to_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: where the cache folder cannot be made, no tokenizer can be loaded."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path / "file"))
    assert make_tiny_tokenizer(tmp_path / "model").encode_texts(["The cat"])


def test_what_cannot_be_loaded_is_not_kept(cache: Path, tmp_path: Path) -> None:
    """Bug: a broken tokenizer leaves something behind that later loads trip over."""
    make_tiny_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError):
        load_tokenizer(tmp_path / "model")
    assert len(list(cache.iterdir())) == 1


def test_pickled_it_still_reads_control_text_as_text(tmp_path: Path) -> None:
    """Bug: a worker process counts the characters of control tokens as control tokens."""
    tokenizer = make_tiny_tokenizer(tmp_path)
    text = "a <|im_start|> b"
    expected = tokenizer.encode_texts([text])  # which has made the form that must not travel
    sent: Tokenizer = pickle.loads(pickle.dumps(tokenizer))  # noqa: S301
    assert sent == tokenizer and sent.encode_texts([text]) == expected


def _same_as_transformers(folder: Path) -> None:
    tokenizer, reference = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for chat in CHATS:
        for generation in (False, True):
            expected = reference.apply_chat_template(chat, tokenize=False, add_generation_prompt=generation)
            assert tokenizer.template.render(chat, add_generation_prompt=generation) == expected
            assert tokenizer.encode_chat(chat, generation) == reference.encode(expected, add_special_tokens=False)


def test_chats_of_the_embedded_tokenizer() -> None:
    """Bug: a chat is rendered with other words than transformers', or without BOS and its like."""
    _same_as_transformers(embedded_target_folder())


@pytest.mark.parametrize("name", PACKAGES)
def test_chats_of_real_tokenizers(name: str) -> None:
    """Bug: as above, for templates that use tokens by name, dates, macros and loop controls."""
    _same_as_transformers(npm_tokenizer_folder(name))


HEAVY = {"torch", "transformers", "scipy", "datasets", "ray", "pandas", "streamlit", "huggingface_hub", "jinja2"}


@pytest.mark.parametrize("command", ["count", "coverage"])
def test_counting_and_coverage_are_light(tmp_path: Path, command: str) -> None:
    """Bug: counting a line of text waits for torch, transformers' models or the hub's client."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "VOCABTRIM_CACHE": str(tmp_path / "cache"),
    }
    (tmp_path / "text.txt").write_text("The cat sat on the mat.")
    make_tiny_tokenizer(tmp_path / "model")
    count = ["count", "text.txt", "--out", "counts.npz", "--tokenizer", "model"]
    asked = count if command == "count" else ["coverage", "counts.npz", "--k", "100", "--tokenizer", "model"]
    script = f"import sys\nfrom vocabtrim_core.cli import main\nprint(main(sys.argv[1:]), {HEAVY} & set(sys.modules))"
    for arguments in (count, asked):  # the first makes what is kept
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
    assert done.stdout.splitlines()[-1] == ("0 set()" if command == "count" else "0 {'scipy'}"), done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["count", "nothing.txt"],
        ["coverage", "nothing.npz"],
        ["compare", "--prompts", "nothing.jsonl"],
        ["generate", "--prompt", "Hi", "--counts", "nothing.npz"],
        ["generate", "--prompt", "Hi", "--target", "./nothing"],
        ["generate", "--prompt", "Hi", "--drafter", "/nothing/at/all"],
        ["tune", "--prompts", "nothing.jsonl"],
        ["bench", "--tasks", "nothing.jsonl", "--k", "4"],
        ["answer", "nothing.jsonl", "--by", "target", "--out", "out.jsonl"],
    ],
    ids=" ".join,
)
def test_a_mistyped_path_answers_at_once(tmp_path: Path, arguments: list[str]) -> None:
    """Bug: a path with a typing error is looked at after torch was imported, which takes seconds."""
    script = (
        "import sys\nfrom vocabtrim_core.cli import main\n"
        "assert main(sys.argv[1:]) == 2 and not {'torch', 'transformers'} & set(sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "nothing" in done.stderr and done.stderr.count("\n") == 1
