"""A trial of a chat template in a process of its own: `python template_trial.py`, the template on stdin.

A chat template is a program that came with a model. The sandbox keeps it from the machine, but not from looping for
hours or from making 10^12 characters. A process can be ended and its memory bounded; a thread cannot.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache

SECONDS = 5  # of the processor; a real template takes milliseconds
CHARACTERS = 1_000_000  # of what a short chat is rendered to
_MEMORY = 2**30
_WALL_SECONDS = 60
_TOO_MUCH = 3


@lru_cache(maxsize=16)
def ends(template: str) -> bool:
    """Whether `template` renders short chats within bounds of time, memory and length. Tried once per process.

    A template that refuses them, or fails, ends: whoever renders it says why.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-I", __file__],
            input=json.dumps(template).encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_WALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _bound() -> None:
    try:
        import resource
    except ImportError:  # not on Windows, where the time that is waited is the bound
        return
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


def _try() -> int:
    template = json.loads(sys.stdin.buffer.read())
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`, which marks what a model says, as `transformers` has it."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body).set_lineno(line)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, **options)
    environment.globals |= {"raise_exception": refuse, "strftime_now": str}
    asked = [{"role": "user", "content": "Why?"}]
    answered = [{"role": "system", "content": "Be brief."}, *asked, {"role": "assistant", "content": "So."}, *asked]
    for messages in (asked, answered):
        try:
            length = 0
            for piece in environment.from_string(template).generate(
                messages=messages, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", tools=None
            ):
                length += len(piece)
                if length > CHARACTERS:
                    return _TOO_MUCH
        except MemoryError:
            return _TOO_MUCH
        except Exception:
            # Whoever renders it says what it refuses.
            continue
    return 0


if __name__ == "__main__":
    _bound()
    sys.exit(_try())
