"""The one family of errors for what a user can put right.

`str(error)` is the sentence that the command line prints and a page shows: what is wrong, where, and what to do.
Anything else that is raised is a bug and is left to surface as one.
"""


class VocabTrimError(Exception):
    """Base of the family; catch this one at the edge (command line, page)."""


class CorpusError(VocabTrimError):
    """A text, upload or counts file that cannot be used."""


class TokenizerError(VocabTrimError):
    """A tokenizer that cannot be loaded, or that does not match."""


class ModelError(VocabTrimError):
    """A model that cannot be fetched, loaded or paired."""


class SettingError(VocabTrimError):
    """A setting outside its range (k, gamma, temperature, an empty prompt)."""
