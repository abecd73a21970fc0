"""What the light commands load: tokenizers and counts; and the place that a result goes to.

Nothing here may import torch: counting and coverage need none.
"""

from __future__ import annotations

from pathlib import Path

from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.embedded import EMBEDDED, embedded_target_folder
from vocabtrim_core.errors import SettingError, TokenizerError
from vocabtrim_core.files import check_writable
from vocabtrim_core.paths import is_folder
from vocabtrim_core.progress import Progress
from vocabtrim_core.shipped import shipped_counts_path
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer


def open_tokenizer(source: str, report: Progress) -> Tokenizer:
    """The tokenizer of a folder, of a hub id or of the embedded target."""
    return load_tokenizer(embedded_target_folder(report) if source == EMBEDDED else source)


def check_out(path: Path | None, suffix: str, what: str) -> None:
    """Refuse a place to save to, before the work. `what` begins the sentence: "Counts are"."""
    if path and path.suffix != suffix:
        raise SettingError(f"{what} saved as a {suffix} file; {path} has another ending.")
    if path and not is_folder(path.absolute().parent):
        raise SettingError(f"The folder of {path} does not exist. Make it first, or save elsewhere.")
    try:
        if path:
            check_writable(path)
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}. Save elsewhere.") from None


def open_counts(path: Path | None) -> TokenCounts:
    """The counts at `path`, or the shipped ones."""
    return TokenCounts.load(path or shipped_counts_path())


def check_tokenizer(counts: TokenCounts, tokenizer: Tokenizer, path: Path | None) -> None:
    """Refuse `counts`, which `open_counts(path)` gave, where another tokenizer made them."""
    if counts.tokenizer_fingerprint == tokenizer.fingerprint:
        return
    if path is None:
        raise SettingError(
            f"No ranking is shipped for the tokenizer {tokenizer.name}. Count a corpus with it "
            "(count FILE --tokenizer ... --out counts.npz) and give the result with --counts."
        )
    raise TokenizerError(
        f"{path} was counted with another tokenizer ({counts.tokenizer_name}) than {tokenizer.name}. Count the corpus "
        "again with this one."
    )
