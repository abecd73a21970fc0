"""The same on the embedded pair: real text, a real head, float32."""

from __future__ import annotations

import torch

from tests.evaluation.test_acceptance import counts, quiet
from vocabtrim_core.counting import TokenCounts
from vocabtrim_core.decoding.engine import GenerationSettings
from vocabtrim_core.decoding.stopping import StopCondition
from vocabtrim_core.evaluation.acceptance import acceptance, acceptance_chances
from vocabtrim_core.evaluation.comparison import Contest
from vocabtrim_core.evaluation.trace import TunePrompt, record
from vocabtrim_core.models import ModelPair
from vocabtrim_core.shipped import shipped_counts_path
from vocabtrim_core.vocabulary import forced_token_ids, rank_tokens

PROMPTS = ["Why is the sky blue?", "Write a Python function that adds two numbers."]


def test_greedy_counts_are_the_engines_on_the_embedded_pair(embedded_pair_fp32: ModelPair) -> None:
    """Bug: anything that tiny models cannot show: real tokenizers, a shared head, a vocabulary of real size."""
    pair = embedded_pair_fp32
    forced = forced_token_ids(pair.tokenizer, pair.target.eos_ids)
    worth = TokenCounts.load(shipped_counts_path()).calibration
    ranking = rank_tokens(worth, forced, "shipped", pair.usable_vocab_size)
    head = pair.drafter.head.reordered(torch.from_numpy(ranking.ids))
    stop = StopCondition(frozenset(pair.target.eos_ids))
    prompts = [TunePrompt(tuple(pair.tokenizer.encode_prompt(text))) for text in PROMPTS]
    trace = record(pair, prompts, GenerationSettings(3, 14), stop, quiet)
    ks, gammas = [128, 4096], [3]
    found = acceptance(acceptance_chances(trace, [head], ks), gammas, ks)
    for row, gamma in enumerate(gammas):
        for column, k in enumerate(ks):
            contest = Contest(pair, head, k, GenerationSettings(gamma, 14), stop)
            runs = [list(contest.cycles("trimmed", list(prompt.ids))) for prompt in prompts]
            lengths, rejections, outside = counts(runs, gamma)
            assert found.cycles[:, row, : gamma + 1, column].tolist() == lengths
            assert found.rejections[:, row, column].tolist() == rejections
            assert found.out_of_vocabulary[:, row, column].tolist() == outside
    assert (found.out_of_vocabulary[:, :, 0] > 0).any()
