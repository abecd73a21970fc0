"""Which kind of file a name says it is."""

from __future__ import annotations

from pathlib import PurePath

from vocabtrim_core.corpora.decompression import Compression
from vocabtrim_core.corpora.shards import Format

# fmt: off
_TEXT = (
    ".txt", ".text", ".md", ".markdown", ".rst", ".adoc", ".tex", ".org", ".log", ".srt", ".vtt", ".html", ".htm",
    ".xml", ".svg", ".xhtml", ".css", ".scss", ".sass", ".less", ".py", ".pyi", ".pyx", ".js", ".mjs", ".cjs", ".jsx",
    ".ts", ".tsx", ".vue", ".svelte", ".java", ".kt", ".kts", ".scala", ".groovy", ".clj", ".c", ".h", ".cc", ".cpp",
    ".cxx", ".hh", ".hpp", ".hxx", ".cu", ".cuh", ".m", ".mm", ".cs", ".fs", ".vb", ".go", ".rs", ".zig", ".swift",
    ".dart", ".rb", ".php", ".pl", ".pm", ".lua", ".r", ".jl", ".hs", ".ml", ".mli", ".ex", ".exs", ".erl", ".elm",
    ".lisp", ".el", ".scm", ".rkt", ".f", ".f90", ".f95", ".pas", ".ada", ".asm", ".s", ".v", ".sv", ".vhd", ".vhdl",
    ".sol", ".sql", ".sh", ".bash", ".zsh", ".fish", ".ps1", ".bat", ".cmake", ".mk", ".gradle", ".tf", ".proto",
    ".graphql", ".toml", ".yaml", ".yml", ".ini", ".cfg", ".conf", ".properties", ".diff", ".patch", ".split",
)
# fmt: on
_FORMATS: dict[str, Format] = {
    **dict.fromkeys(_TEXT, "text"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    ".json": "json",
    ".csv": "csv",
    **dict.fromkeys((".tsv", ".tab"), "tsv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".bin", ".npy"), "tokens"),
}
_COMPRESSIONS: dict[str, Compression] = {
    **dict.fromkeys((".gz", ".gzip"), "gzip"),
    **dict.fromkeys((".zst", ".zstd"), "zstd"),
    ".bz2": "bz2",
    ".xz": "xz",
}

SUFFIXES = (*_FORMATS, *_COMPRESSIONS)
# For people: one of each kind.
KINDS = "text (.txt, .md, .html), source code (.py, .js, .c, ...), .jsonl, .json, .csv, .tsv, .parquet, .arrow, .bin"


def format_of(name: str) -> tuple[Format | None, Compression | None]:
    """The format and compression of a file of this name; no format where the ending is not known."""
    path = PurePath(name)
    compression = _COMPRESSIONS.get(path.suffix.lower())
    if compression:
        path = path.with_suffix("")
    return _FORMATS.get(path.suffix.lower()), compression
