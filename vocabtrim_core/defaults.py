"""What is used where nothing is chosen, by the command line and the pages alike.

A module without imports, so that `--help` need not wait for torch.
"""

KEPT_TOKENS = 4096  # k
COVERAGE_SIZES = (1024, 4096, 16384)  # k
DRAFTERS = ("independent", "eagle", "medusa", "lookup")  # by kind, as they come with the embedded target
DRAFTER = "independent"
GAMMA = 2
MAX_NEW_TOKENS = 128
BATCH = 16
REPEATS = 3
HOLDOUT = 0.1
DTYPES = ("auto", "float16", "bfloat16", "float32")  # auto: what the processor decodes fastest

HUB_SECONDS = 10  # The model hub has so long to answer; then it counts as out of reach.
