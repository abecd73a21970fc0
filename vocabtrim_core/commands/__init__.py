"""The commands of the command line: one module each, with `run` (arguments to a result) and `describe` (for people)."""
