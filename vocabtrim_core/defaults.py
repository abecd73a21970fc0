"""What is used where nothing is chosen, by the command line and the pages alike.

What to draft (k, gamma, trees) depends on the number format: see `shipped.shipped_tuning`.

A module without imports, so that `--help` need not wait for torch.
"""

COVERAGE_SIZES = (1024, 4096, 16384)  # k
DRAFTERS = ("independent", "eagle", "medusa", "lookup")  # by kind, as they come with the embedded target
DRAFTER = "eagle"  # the fastest of them
MAX_NEW_TOKENS = 128
BATCH = 16
REPEATS = 3
HOLDOUT = 0.1
DTYPES = ("auto", "float16", "bfloat16", "float32")  # auto: what the processor decodes fastest

HUB_SECONDS = 10  # The model hub has so long to answer; then it counts as out of reach.
BUILTIN = "builtin"  # the prompts that come with the project
