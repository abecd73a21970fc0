"""Values that break programs, by kind."""

from __future__ import annotations

import os
import random
from pathlib import Path

NUMBERS = (
    *("0", "1", "2", "3", "-1", "-0", "17", "100", "nan", "inf", "-inf", "1e308", "1e-320", "0.5", "1.5", "-0.1", ".5"),
    *("0x10", "1_000", "+3", "99999999999999999999", "-99999999999999999999", "2147483647", "2147483648", "1e400"),
    *("9223372036854775807", "9223372036854775808", "full", "bytes", "all", "builtin", "", " ", "\t", "٣", "²"),
    *("9" * 5000, "-" + "9" * 400, "1" + "0" * 400, "--", "-", "1,", ",", "None", "true"),
)
TEXTS = (
    "",
    " ",
    "\n",
    "The dog",
    "a" * 300,
    "<|im_end|>",
    "\x1b[31m\x1b]0;title\x07",
    "‮abc‬",
    "\udcff",
    "\ud800",
    "𝔘𝔫𝔦" * 50,
    "e" + "\u0301" * 500,
    "{{ 7*7 }}",
    "%s%n",
    "../..",
    "\ufeff",
    "\u2028line",
    "--",
    "-x",
)
TEMPLATES = (
    "{{ 1 / 0 }}",
    "{{ 'a' * 10**12 }}",
    "{{ 'a' * 10**7 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ messages[7].content }}",
    "{{ messages[0].content.foo.bar }}",
    "{{ ''.__class__.__mro__ }}",
    "{% for a in b %}",
    "{{ raise_exception('no\nand no') }}",
    "{{ undefined_function() }}",
    "constant",
    "",
    "{{ 'x'|center(10**11) }}",
    "{{ messages|tojson }}",
    "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
)
# Of JSON, in place of any value.
VALUES: tuple[object, ...] = (
    None, True, False, 0, -1, 1, 2, 8, 10**6, 2**31, 4 * 10**9, 2**63, 10**30, -(2**63), 0.0, -1.5, 1e308, float("nan"),
    float("inf"), "", "text", "\ud800", "a" * 300, [], [1], ["a"], [[]], [None], {}, {"a": 1}, {"": None}, [0] * 100,
)  # fmt: skip


def paths(folder: Path, right: list[Path]) -> list[str]:
    """Paths of every kind, hostile ones made in `folder` (the current one), and some that are right."""
    if not os.path.lexists(folder / "loop.txt"):
        (folder / "loop.txt").symlink_to("loop.txt")
        (folder / "loops").mkdir()
        (folder / "loops" / "loop.jsonl").symlink_to("loop.jsonl")
        (folder / "loops" / "up").symlink_to("..")
        (folder / "empty").mkdir()
        (folder / "empty.npz").touch()
        (folder / "empty.txt").touch()
        (folder / "closed.txt").touch(mode=0)
        os.mkfifo(folder / "pipe.txt")
        os.mkfifo(folder / "pipe.npz")
        (folder / "null.npz").symlink_to("/dev/zero")
        (folder / "a\x1b[2J‮b.txt").write_text("The cat sat.")
        (folder / "a\nb.txt").write_text("The dog sat.")
    names = ["loop.txt", "loops", "empty", "empty.npz", "empty.txt", "closed.txt", "pipe.txt", "pipe.npz", "null.npz"]
    names += ["a\x1b[2J‮b.txt", "a\nb.txt", "*", "**", "[", "[a-", "{}", "*.txt", ".", "..", "/", "", " ", "-", "~"]
    names += ["~nosuchuser", "~nosuchuser/x", "a" * 300, "a" * 300 + ".npz", "a/" * 2500, "\udcff.txt", "missing.txt"]
    names += [
        "/dev/zero",
        "/dev/full",
        "/dev/stdin",
        "/proc/self/mem",
        "/proc/self/maps",
        "no/such.npz",
        "x.jsonl",
        "x.npz",
    ]
    names += [
        "hf:",
        "hf:a:b:c:d",
        "hf:../x",
        "hf:nobody/nothing",
        "someone/some-model",
        "a/b/c",
        "http://127.0.0.1:9/x",
    ]
    return [*names, *map(str, right)]


def number(chance: random.Random) -> str:
    return chance.choice(NUMBERS)


def listed(chance: random.Random) -> str:
    """Numbers with commas between, and other joints."""
    joint = chance.choice((",", ",", ",", "-", ";", "=", ",,", " "))
    return joint.join(number(chance) for _ in range(chance.choice((1, 2, 2, 3, 5, 70))))


def damaged(data: bytes, chance: random.Random) -> bytes:
    """`data` with something done to it."""
    at, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    match chance.randrange(9):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:at] + bytes(chance.randrange(256) for _ in range(8)) + data[at + 8 :]
        case 3:
            return data[:at] + data[at:end] * chance.choice((2, 3, 20)) + data[end:]
        case 4:
            return data[:at] + b"\0" * chance.choice((1, 100, 5000)) + data[at:]
        case 5:
            return data[:at] + chance.choice(TEXTS).encode("utf-8", "surrogatepass") + data[at:]
        case 6:
            return data + data
        case 7:
            return data[:at] + number(chance).encode() + data[at:]
    return data
