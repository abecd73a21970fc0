"""A proof that two processes encode alike: a digest of what a job makes of awkward documents.

Pickling, another version of a library or another operating system may change a tokenizer in silence, and then a
cluster counts other tokens than one machine.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np

from vocabtrim_core.corpora import Document
from vocabtrim_core.counting.shard_counts import Job
from vocabtrim_core.fast_tokenization import AWKWARD, awkward_texts


def encoding_proof(job: Job) -> str:
    """sha256 hex digest of the token ids that `job` gives texts and chats, control-token text in both."""
    tokenizer = job.encoders.tokenizer
    documents = [Document(text, None) for text in awkward_texts(tokenizer)]
    if tokenizer.has_chat_template:
        contents = [*AWKWARD, *(f"a {text} b" for text in tokenizer.control_texts[:50])]
        for content in contents:
            asked, answered = {"role": "user", "content": content}, {"role": "assistant", "content": content}
            documents.append(Document(None, (asked, answered)))
    refused: list[str] = []
    kept, flat = job.document_encoder.encode(documents, lambda document, reason: refused.append(reason), Counter())
    digest = hashlib.sha256(repr((len(kept), refused)).encode())
    digest.update(flat.ids.astype(np.int64).tobytes())
    digest.update(flat.offsets.tobytes())
    return digest.hexdigest()
