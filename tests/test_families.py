"""What is known of the registered families: each is decoded rightly or refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import verdict

TREES = [
    "afmoe",
    "apertus",
    "arcee",
    "aria_text",
    "beam",
    "bert-generation",
    "biogpt",
    "bitnet",
    "codegen",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "ctrl",
    "cwm",
    "deepseek_v2",
    "deepseek_v3",
    "diffllama",
    "doge",
    "dots1",
    "gpt2",
    "mixtral",
]
CHAINS = [
    "bailing_hybrid",
    "bart",
    "bigbird_pegasus",
    "blenderbot",
    "bloom",
    "deepseek_v4",
    "falcon_h1",
    "gpt_neo",
    "jamba",
    "mamba",
    "mamba2",
    "openai-gpt",
    "qwen3_5",
    "qwen3_next",
]
REFUSED = ["bert", "big_bird", "camembert", "data2vec-text"]
EXPECTED = {
    **dict.fromkeys(TREES, ("right", "right", "right")),
    **dict.fromkeys(CHAINS, ("right", "right", "refused")),
    **dict.fromkeys(REFUSED, ("refused", "refused", "refused")),
}


@pytest.mark.parametrize("family", EXPECTED)
def test_a_family_is_right_or_refused(family: str, tmp_path: Path) -> None:
    """Bug: a family whose text is another than its own `generate` writes, or that ends in a traceback; a family that
    ran before is refused."""
    found = verdict(family, tmp_path)
    assert (found.vanilla, found.chains, found.trees) == EXPECTED[family], found.words
    assert "\n" not in found.words
