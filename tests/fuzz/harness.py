"""What the tests of mistakes and the fuzz tests work with."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tiny_models import save_first_layer, save_tiny_llama
from tiny_tokenizer import TEXT, make_tiny_tokenizer

from vocabtrim_core.cli import main


@dataclass(frozen=True)
class Pantry:
    """What is right: a tiny pair, its counts, a corpus and prompts."""

    target: Path
    drafter: Path
    counts: Path
    corpus: Path
    prompts: Path

    @property
    def pair(self) -> list[str]:
        return ["--target", str(self.target), "--drafter", str(self.drafter), "--counts", str(self.counts)]


def stock(root: Path) -> Pantry:
    """A pantry below `root`."""
    tokenizer = make_tiny_tokenizer(root / "target")
    make_tiny_tokenizer(root / "drafter")
    target = save_tiny_llama(root / "target", tokenizer.vocab_size)
    save_first_layer(target, root / "drafter", tokenizer.vocab_size)
    (root / "corpus.txt").write_text(TEXT * 50)
    (root / "prompts.jsonl").write_text('{"prompt": "The dog"}\n{"prompt": "The cat"}\n')
    counts = root / "counts.npz"
    assert main(["count", str(root / "corpus.txt"), "--tokenizer", str(root / "target"), "--out", str(counts)]) == 0
    return Pantry(root / "target", root / "drafter", counts, root / "corpus.txt", root / "prompts.jsonl")


@contextmanager
def memory_bound(more: int) -> Iterator[None]:
    """Let this process take `more` bytes of addresses than it has."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Run:
    """Runs the command line in this process and checks how it ended; `(exit code, stdout, stderr)`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        argv = [str(argument) for argument in arguments]
        self._capsys.readouterr()
        try:
            code = main(argv)
        except SystemExit as left:  # argparse, after --help
            code = left.code if isinstance(left.code, int) else 0
        out, err = self._capsys.readouterr()
        said = [line for line in err.splitlines() if line.startswith("vocabtrim_core: ")]
        assert code in (0, 2, 3), (code, argv, err)  # 3: counted, with something left out that is named
        assert "Traceback" not in err, (argv, err)
        if code == 2:
            assert len(said) == 1 and err.endswith(said[0] + "\n") and not out, (argv, out, err)
            assert said[0].isprintable(), (argv, err)
        return code, out, err
