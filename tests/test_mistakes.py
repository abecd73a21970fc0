"""What a user may get wrong on the command line, by kind: one line, exit code 2, before the work and within bounds."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fuzz.harness import Pantry, Run, memory_bound, stock
from safetensors.torch import load_file, save_file
from tiny_models import save_tiny_llama

from vocabtrim_core import hub, template_trial
from vocabtrim_core.errors import CorpusError, ModelError, VocabTrimError
from vocabtrim_core.mixing import proportions
from vocabtrim_core.model_files import model_folder
from vocabtrim_core.paths import is_file, is_folder, read_bounded
from vocabtrim_core.sentences import shortened, visible

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def pantry(tmp_path_factory: pytest.TempPathFactory) -> Pantry:
    return stock(tmp_path_factory.mktemp("mistakes"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """The command line in an empty folder, with 3 GB more memory than before and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with memory_bound(3 * 2**30):
        yield Run(capsys)


def refused(run: Run, *arguments: object) -> str:
    """The sentence that the command line refuses `arguments` with."""
    code, _, said = run(*arguments)
    assert code == 2, said
    return said


def with_folder(pantry: Pantry, **files: object) -> list[str]:
    """Arguments that decode with a copy of the target in which some keys of JSON files are others."""
    shutil.copytree(pantry.target, "target")
    for name, changes in files.items():
        path = Path("target", f"{name}.json")
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return ["generate", "--prompt", "The dog", "--method", "vanilla", "--target", "target", "--max-new-tokens", "2"]


# ---------------------------------------------------------------------------------------------------------------------
# Sentences and paths


def test_sentences_are_one_line_that_steers_nothing() -> None:
    """Bug: an escape sequence, a bidirectional mark or a line end in a file's name reaches the terminal or the page."""
    assert str(CorpusError("a\x1b[2J\u202eb\nc\ud800 ä 猫.")) == "a\\x1b[2J\\u202eb\\nc\\ud800 ä 猫."
    assert visible("a\n\tb", keep="\n\t") == "a\n\tb"
    assert shortened("9" * 5000) == "9" * 100 + "..." + "9" * 100
    assert isinstance(ModelError("x"), VocabTrimError)


@pytest.mark.parametrize(
    "path", ["a" * 300, "~nosuchuser/x", "loop", "a\0b", "\ud800", "/dev/zero", "pipe", "a/" * 2500]
)
def test_any_path_can_be_looked_at(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: to ask whether there is a folder of that name raises; a device or a pipe is read without end."""
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")
    assert not is_folder(path) and not is_file(path)
    with pytest.raises(CorpusError):
        read_bounded(path, 1000)


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    """Bug: a file grows while it is read, or has no size (/proc), and takes all memory."""
    (tmp_path / "a").write_bytes(b"12345")
    assert read_bounded(tmp_path / "a", 5) == b"12345"
    with pytest.raises(CorpusError, match="too large"):
        read_bounded(tmp_path / "a", 4)


def test_names_of_files_cannot_steer_the_terminal(pantry: Pantry, run: Run) -> None:
    """Bug: the name of a counted file clears the screen."""
    Path("a\x1b[2J\u202eb.txt").write_text("The cat sat.")
    _, out, _ = run("count", "a\x1b[2J\u202eb.txt", "--tokenizer", pantry.target)
    assert "a\\x1b[2J\\u202eb.txt" in out and "\x1b" not in out


def test_a_loop_of_links_in_a_folder_is_named(pantry: Pantry, run: Run) -> None:
    """Bug: a symbolic link to itself ends the count of its folder in a traceback."""
    Path("folder").mkdir()
    Path("folder/loop.txt").symlink_to("loop.txt")
    Path("folder/good.txt").write_text("The cat sat.")
    _, out, err = run("count", "folder", "--tokenizer", pantry.target)
    assert "folder/loop.txt" in out + err and "symbolic links" in out + err


# ---------------------------------------------------------------------------------------------------------------------
# Options


@pytest.mark.parametrize("option", ["--k", "--gamma", "--seed", "--prompt", "--tree", "--temperature", "--stop"])
def test_an_option_without_its_value(option: str, pantry: Pantry, run: Run) -> None:
    """Bug: argparse hands on an empty list for `--k=--`."""
    assert "expected one argument" in refused(run, "generate", "--prompt", "The dog", *pantry.pair, f"{option}=--")


def test_ids_and_weights_of_any_size(pantry: Pantry, run: Run) -> None:
    """Bug: an id of 20 or 5,000 digits, a range up to 10^20, or weights whose sum is infinite end in a traceback."""
    for digits in ("9" * 20, "9" * 5000):
        for option in ("--pin", "--ban"):
            said = refused(run, "coverage", pantry.counts, option, digits, "--k", "100")
            assert "not a list of token ids" in said and len(said) < 700
    assert "from 1 to 32" in refused(run, "tune", "--gammas", "1-99999999999999999999")
    mixture = f"{pantry.counts}=1e308"
    shutil.copy(pantry.counts, "other.npz")
    assert run("coverage", "--mix", f"{mixture},other.npz=1e308", "--k", "100")[0] == 0
    assert proportions([1e308, 1e308]).tolist() == [0.5, 0.5]


def test_answers_are_bounded(pantry: Pantry, run: Run) -> None:
    """Bug: 2147483648 samples are planned, in 4 GB, before the first is written."""
    arguments = ["answer", pantry.prompts, "--by", "target", "--out", "a.jsonl", "--temperature", "1", *pantry.pair[:4]]
    assert "at most 1,000,000" in refused(run, *arguments, "--samples", "2147483648")
    Path("two.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    arguments[1] = "two.jsonl"
    assert "600,000 samples of 2 prompts are 1,200,000 answers" in refused(run, *arguments, "--samples", "600000")


@pytest.mark.parametrize("option", ["--prompts", "--list", "--counts"])
def test_devices_are_refused_before_they_are_read(option: str, pantry: Pantry, run: Run) -> None:
    """Bug: /dev/zero as a list, counts or prompts takes all memory."""
    Path("zero.npz").symlink_to("/dev/zero")
    said = {
        "--prompts": ["compare", "--prompts", "/dev/zero", *pantry.pair],
        "--list": ["coverage", pantry.counts, "--list", "/dev/zero", "--tokenizer", pantry.target, "--k", "100"],
        "--counts": ["coverage", "zero.npz", "--k", "100"],
    }[option]
    assert "may never end" in refused(run, *said)


# ---------------------------------------------------------------------------------------------------------------------
# Model folders


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**30}, "supported are up to 1,000"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
        ({"eos_token_id": [2, "x"]}, "eos_token_id"),
        ({"vocab_size": 8}, "could not be loaded"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings"),
    ],
)
def test_configurations_are_checked(changes: dict, sentence: str, pantry: Pantry, run: Run) -> None:
    """Bug: a configuration that makes no sense ends in a traceback while decoding."""
    assert sentence in refused(run, *with_folder(pantry, config=changes))


def test_a_vocabulary_smaller_than_the_tokenizer(pantry: Pantry, run: Run) -> None:
    """Bug: an id that the model has no embedding for ends in an IndexError."""
    arguments = with_folder(pantry)
    save_tiny_llama(Path("target"), 8)
    assert "embeddings of 8 tokens" in refused(run, *arguments)
    shutil.rmtree("target")
    shutil.copytree(pantry.drafter, "drafter")
    save_tiny_llama(Path("drafter"), 8)
    said = refused(
        run, "generate", "--prompt", "x", "--target", pantry.target, "--drafter", "drafter", *pantry.pair[4:]
    )
    assert "embeddings of 8 tokens, fewer than" in said


def test_weights_that_are_no_numbers(pantry: Pantry, run: Run) -> None:
    """Bug: NaN is called a head that cannot be trimmed, or decoded with at acceptance 0."""
    arguments = with_folder(pantry)
    weights = load_file("target/model.safetensors")
    weights["model.layers.0.mlp.up_proj.weight"][3, 4] = float("nan")
    save_file(weights, "target/model.safetensors", metadata={"format": "pt"})
    said = refused(run, *arguments)
    assert "is damaged: model.layers.0.mlp.up_proj.weight holds values that are not finite" in said
    Path("heads").mkdir()
    head = {"0.0.linear.weight": torch.full((32, 32), float("nan")), "0.0.linear.bias": torch.zeros(32)}
    save_file(head, "heads/model.safetensors")
    for temperature in ("0", "1"):
        arguments = ["--target", pantry.target, "--drafter", "heads", *pantry.pair[4:], "--temperature", temperature]
        assert "The drafter heads is damaged: 0.0.linear.weight" in refused(
            run, "generate", "--prompt", "x", *arguments
        )


class Code:
    """Pickled, it is a command."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch hacked",)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "medusa_lm_head.pt"])
def test_weights_that_are_code(name: str, pantry: Pantry, run: Run) -> None:
    """Bug: the sentence advises to switch off the check that keeps the code from running."""
    arguments = with_folder(pantry)
    Path("target/model.safetensors").unlink()
    torch.save({"a": Code()}, Path("target", name))
    arguments = ["generate", "--prompt", "x", "--target", pantry.target, "--drafter", "target", *pantry.pair[4:]]
    said = refused(run, *arguments)
    assert "something else than tensors" in said and "weights_only" not in said and not Path("hacked").exists()


def test_a_tokenizer_with_a_huge_id(pantry: Pantry, run: Run) -> None:
    """Bug: one id of 4x10^9 takes 8 GB and a minute and a half."""
    arguments = with_folder(pantry)
    content = json.loads(Path("target/tokenizer.json").read_text())
    content["model"]["vocab"]["zzz"] = 4 * 10**9
    Path("target/tokenizer.json").write_text(json.dumps(content))
    assert "has ids up to 4,000,000,000" in refused(run, *arguments)


@pytest.mark.parametrize(
    "template, sentence",
    [
        ("{{ 1 / 0 }}", "refuses these messages: division by zero"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "in circles"),
        ("{{ 'a' * 10**12 }}", "1,000,000 characters"),
        ("{{ 'a' * 10**8 }}", "1,000,000 characters"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 5 seconds"),
        ("{{ raise_exception('no\nand no') }}", "refuses these messages: no."),
    ],
)
def test_chat_templates_are_bounded(template: str, sentence: str, pantry: Pantry, run: Run) -> None:
    """Bug: a template, which is a program, ends in a traceback, takes all memory, or never ends."""
    Path("empty").mkdir()
    arguments = with_folder(pantry, tokenizer_config={"chat_template": template})
    assert sentence in refused(run, *arguments)


def test_real_templates_end() -> None:
    """Bug: a template that real models come with is refused by the trial."""
    assert template_trial.ends("{% generation %}{{ messages[0]['content'] }}{% endgeneration %}")
    assert template_trial.ends(
        "{{ bos_token }}{% for m in messages %}{{ m | tojson(indent=2) }}{% break %}{% endfor %}"
    )


# ---------------------------------------------------------------------------------------------------------------------
# The hub, and places to print to


def test_a_hub_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a hub that accepts the connection and says nothing is waited for, for minutes."""
    silent = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []
    threading.Thread(target=lambda: held.append(silent.accept()[0]), daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
    monkeypatch.setattr(hub, "HUB_SECONDS", 0.2)
    with pytest.raises(ModelError, match=r"0\.2 seconds to answer.*offline"):
        model_folder("someone/some-model-that-no-cache-has")
    silent.close()


def test_a_place_without_room(pantry: Pantry) -> None:
    """Bug: a result that cannot be printed ends in a traceback, or in exit code 0 or 120."""
    command = [sys.executable, "-m", "vocabtrim_core", "coverage", str(pantry.counts), "--k", "100"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "vocabtrim_core: The result could not be printed: No space left on device. Print it to a place with room.\n"
    )


def test_a_terminal_with_few_letters(pantry: Pantry, tmp_path: Path) -> None:
    """Bug: a letter that the terminal's encoding lacks ends in a traceback."""
    (tmp_path / "猫.txt").write_text("The cat sat.")
    command = [sys.executable, "-m", "vocabtrim_core", "count", "猫.txt", "--tokenizer", str(pantry.target)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "\\u732b.txt" in done.stdout
