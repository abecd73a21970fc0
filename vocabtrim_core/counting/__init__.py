"""Token counts of corpora: on all cores or a cluster, resumable, and the same bit for bit either way."""

from vocabtrim_core.counting.counts import MAX_BAD_RECORDS, CountedFile, TokenCounts
from vocabtrim_core.counting.run import (
    ENGINES,
    CountRun,
    Engine,
    count_files,
    count_shards,
    run_count,
)
from vocabtrim_core.counting.split import HELD_OUT_GROUPS, check_holdout, content_hash, is_held_out
from vocabtrim_core.counting.tally import Tally

__all__ = [
    "ENGINES",
    "HELD_OUT_GROUPS",
    "MAX_BAD_RECORDS",
    "CountRun",
    "CountedFile",
    "Engine",
    "Tally",
    "TokenCounts",
    "check_holdout",
    "content_hash",
    "count_files",
    "count_shards",
    "is_held_out",
    "run_count",
]
