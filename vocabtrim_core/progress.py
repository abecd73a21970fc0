"""How long work reports on itself."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""Called with the share done (0 to 1) and what is being done; an exception that it raises cancels the work."""
