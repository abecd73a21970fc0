from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from hypothesis import settings
from playwright.sync_api import Browser, sync_playwright
from tiny_models import save_first_layer, save_tiny_llama
from tiny_tokenizer import make_tiny_tokenizer

from vocabtrim_core import number_format
from vocabtrim_core.models import ModelPair, load_pair

FLAGS = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

# Machines that run the tests differ in speed and may be busy, so time is no failure; in CI every run is the same run.
settings.register_profile("project", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("project")


@pytest.fixture(autouse=True, scope="session")
def auto_is_float32() -> Iterator[None]:
    """The number format `auto` is not timed in tests, and does not depend on the processor that they run on."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(number_format, "_kept_timings", lambda: {"float32": 1.0})
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ray-corpora", type=int, default=100, help="random corpora per tokenizer counted on Ray too")


@pytest.fixture(scope="session")
def embedded_pair_fp32() -> ModelPair:
    """The embedded pair in fp32, its target fetched into the user's cache folder on first use."""
    return load_pair(dtype="float32")


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> ModelPair:
    """A random two-layer target and its first layer as drafter, padded to different vocabularies; no network."""
    root = tmp_path_factory.mktemp("tiny_pair")
    tokenizer = make_tiny_tokenizer(root / "target")
    make_tiny_tokenizer(root / "drafter")
    target = save_tiny_llama(root / "target", vocab_size=tokenizer.vocab_size + 4)
    save_first_layer(target, root / "drafter", vocab_size=tokenizer.vocab_size + 12)
    return load_pair(root / "target", root / "drafter")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail("The browser tests need Chromium: install Debian's package with `apt-get install chromium`.")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield launched
        launched.close()
