"""What a case of the fuzz tests works with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

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
        assert code in (0, 2), (code, argv, err)
        assert "Traceback" not in err, (argv, err)
        if code == 2:
            assert len(said) == 1 and err.endswith(said[0] + "\n") and not out, (argv, out, err)
            assert said[0].isprintable(), (argv, err)
        return code, out, err
