"""The one family of errors for what a user can put right.

`str(error)` is the sentence that the command line prints and a page shows: what is wrong, where, and what to do.
Anything else that is raised is a bug and is left to surface as one.
"""

from vocabtrim_core.sentences import visible


class VocabTrimError(Exception):
    """Base of the family; catch this one at the edge (command line, page).

    Its text is one line, whatever names and messages it quotes: what cannot be seen is shown as an escape.
    """

    def __str__(self) -> str:
        return visible(super().__str__())


class CorpusError(VocabTrimError):
    """A text, upload or counts file that cannot be used."""


class TokenizerError(VocabTrimError):
    """A tokenizer that cannot be loaded, or that does not match."""


class ModelError(VocabTrimError):
    """A model that cannot be fetched, loaded or paired."""


class TooLargeError(ModelError):
    """Weights that the number format cannot hold."""


class SettingError(VocabTrimError):
    """A setting outside its range (k, gamma, temperature, an empty prompt)."""
