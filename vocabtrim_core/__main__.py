"""`python -m vocabtrim_core`."""

import io
import sys

from vocabtrim_core.cli import main

if __name__ == "__main__":
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks must not end the program.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(main())
