"""Counting: the right tokens on the right side, traceable, and the same whatever the order, the cuts or the engine."""

import gzip
import hashlib
import json
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.counting.helpers import chat, jsonl, same
from tests.npm_tokenizers import npm_tokenizer_folder
from tests.tiny_tokenizer import CONTROL_TEXTS, make_tiny_tokenizer
from vocabtrim_core.corpora import CorpusFile, ReadingOptions, plan_shards, read_file, text_blocks
from vocabtrim_core.counting import (
    MAX_BAD_RECORDS,
    CountedFile,
    TokenCounts,
    count_files,
    count_shards,
    run,
    run_count,
)
from vocabtrim_core.errors import CorpusError, SettingError, TokenizerError
from vocabtrim_core.fast_tokenization import Encoders, FastEncoder, LibraryEncoder, fast_version
from vocabtrim_core.tokenization import Tokenizer, load_tokenizer

DATA = Path(__file__).parent.parent.parent / "data"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return make_tiny_tokenizer(tmp_path_factory.mktemp("tiny"))


# Counting


def test_counts_are_the_tokens_of_the_text(tokenizer: Tokenizer) -> None:
    """Bug: a token lost or counted twice when chunks are flattened; wrong provenance."""
    text = "The cat sat on the mat.\n\n" * 300
    file = CorpusFile("a.txt", text.encode())
    counts = count_files([file], tokenizer, holdout=0)
    encoded = tokenizer.encode_texts(list(text_blocks(text)))
    ids = [i for block in encoded for i in block]
    assert counts.calibration.shape == (tokenizer.vocab_size,) and counts.calibration.dtype == np.int64
    assert counts.calibration.tolist() == np.bincount(ids, minlength=tokenizer.vocab_size).tolist()
    assert (counts.documents, counts.tokens, counts.distinct) == (len(encoded), len(ids), len(set(ids)))
    assert counts.held_out.sum() == 0 and counts.held_out_documents == 0
    assert counts.files == (CountedFile("a.txt", file.sha256, counts.documents, counts.tokens),)
    assert (counts.tokenizer_name, counts.tokenizer_fingerprint) == (tokenizer.name, tokenizer.fingerprint)


def test_literal_control_text_is_not_a_control_token(tokenizer: Tokenizer) -> None:
    """Bug: "<|im_end|>" written in a corpus is counted as the end of a turn, in text or inside a chat."""
    literal = " ".join(CONTROL_TEXTS)
    counts = count_files([CorpusFile("a.txt", literal.encode()), jsonl("b.jsonl", [literal])], tokenizer, holdout=0)
    assert counts.calibration[list(tokenizer.control_ids)].sum() == 0
    counts = count_files([CorpusFile("a.jsonl", chat(literal).encode())], tokenizer, holdout=0)
    by_text = dict(zip(tokenizer.control_texts, counts.calibration[list(tokenizer.control_ids)], strict=True))
    assert by_text == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 1}


def test_chats_are_rendered_with_the_template(tokenizer: Tokenizer) -> None:
    """Bug: roles or turn marks, which a drafter has to propose too, are left out of the counts."""
    counts = count_files([CorpusFile("a.jsonl", chat("Hi", "cat").encode())], tokenizer, holdout=0)
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi"}, {"role": "user", "content": "cat"}])
    assert counts.calibration.tolist() == np.bincount(ids, minlength=tokenizer.vocab_size).tolist()


def test_chats_without_a_template(tmp_path) -> None:
    """Bug: a traceback, or chats counted as bare text without a word."""
    plain = make_tiny_tokenizer(tmp_path / "plain", chat_template=None)
    with pytest.raises(TokenizerError, match=r"chats to count.*no chat template"):
        count_files([CorpusFile("chats.jsonl", chat("Hi").encode())], plain)


def test_chats_that_the_template_refuses(tokenizer: Tokenizer) -> None:
    """Bug: one chat with an odd role stops the count, or vanishes from it silently."""
    odd = chat("Hi", role="wizard")
    counts = count_files([CorpusFile("a.jsonl", f"{chat('Hi')}\n{odd}\n[]\n".encode())], tokenizer)
    assert counts.documents == 1 and counts.bad_record_count == 2
    assert [bad.line for bad in counts.bad_records] == [2, 3]
    assert "unknown speaker (“wizard”)" in counts.bad_records[0].reason
    with pytest.raises(CorpusError, match=r"a\.jsonl has no usable record.*line 1: .*unknown speaker"):
        count_files([CorpusFile("a.jsonl", odd.encode())], tokenizer)


def test_only_the_first_bad_records_are_kept(tokenizer: Tokenizer) -> None:
    """Bug: a file with a million bad lines fills the memory and the page with them."""
    bad = "\n".join(["oops"] * 50)
    counts = count_files([CorpusFile("a.jsonl", f"{bad}\n{chat('Hi')}".encode())], tokenizer)
    assert counts.bad_record_count == 50
    assert [record.line for record in counts.bad_records] == list(range(1, MAX_BAD_RECORDS + 1))


@pytest.mark.parametrize("holdout", [-0.1, 1, 1.5, float("nan")])
def test_holdout_out_of_range(tokenizer: Tokenizer, holdout: float) -> None:
    """Bug: everything is held out, and every curve that follows is NaN."""
    with pytest.raises(SettingError, match="held-out share"):
        count_files([jsonl("a.jsonl", ["x"])], tokenizer, holdout)


def test_nothing_to_count(tokenizer: Tokenizer) -> None:
    """Bug: a traceback where no file was chosen; a bad file among good ones passes unnoticed."""
    with pytest.raises(CorpusError, match="choose at least one file"):
        count_files([], tokenizer)
    with pytest.raises(CorpusError, match=r"b\.txt is empty"):
        count_files([jsonl("a.jsonl", ["x"]), CorpusFile("b.txt", b"")], tokenizer)


class CancelledError(Exception):
    pass


def test_progress_and_cancel(tokenizer: Tokenizer, monkeypatch) -> None:
    """Bug: progress that jumps back or never ends at 1; a count that cannot be stopped."""
    monkeypatch.setattr(Encoders, "batch_characters", 1_000)
    files = [
        CorpusFile(f"{i}.txt", ("The cat sat.\n" * 500).encode(encoding))
        for i, encoding in enumerate(["utf-8", "utf-16"])
    ]
    shares: list[float] = []

    def cancel(share: float, message: str) -> None:
        shares.append(share)
        if len(shares) == 2:
            raise CancelledError

    with pytest.raises(CancelledError):
        count_files(files, tokenizer, on_progress=cancel)
    shares.clear()
    count_files(files, tokenizer, on_progress=lambda share, message: shares.append(share))
    assert len(shares) > 4 and shares == sorted(shares) and shares[0] > 0 and shares[-1] == 1


def threads() -> set[threading.Thread]:
    return set(threading.enumerate())


def test_cancelling_leaves_nothing_running(tokenizer: Tokenizer, monkeypatch) -> None:
    """Bug: cancelled or failed counts go on in the background, hold files open and slow all that follows."""
    monkeypatch.setattr(Encoders, "batch_characters", 1_000)
    before = threads()
    files = [CorpusFile(f"{i}.txt", b"The cat sat on the mat.\n" * 2_000) for i in range(6)]

    def cancel(share: float, message: str) -> None:
        raise CancelledError

    with pytest.raises(CancelledError):
        count_files(files, tokenizer, on_progress=cancel)
    assert threads() == before
    with pytest.raises(CorpusError, match="no usable record"):
        count_files([*files, CorpusFile("bad.jsonl", b"oops")], tokenizer)
    assert threads() == before


# Any source, any cut, any encoder


def test_cuts_compression_and_encoder_change_nothing(tmp_path, tokenizer: Tokenizer, monkeypatch) -> None:
    """Bug: a document at a cut is lost or counted twice; a fast path counts otherwise than the slow one."""
    lines = [json.dumps({"text": f"The {i} cat <|im_end|> é😀\n" * (i % 7 + 1)}) for i in range(400)]
    lines[100:100] = ["oops", "", json.dumps({"messages": [{"role": "assistant", "content": "Hi <|im_end|>"}]})]
    data = "\n".join(lines).encode()
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.jsonl").write_bytes(data)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "a.jsonl.gz").write_bytes(gzip.compress(data))
    upload = count_files([CorpusFile("a.jsonl", data)], tokenizer, 0.3)
    cut = plan_shards([tmp_path / "plain"], target_bytes=3_000)
    assert len(cut) > 5
    found = [count_shards(shards, tokenizer, holdout=0.3) for shards in (cut, plan_shards([tmp_path / "packed"]))]
    monkeypatch.setattr(run, "FAST_FROM_SIZES", 0)
    counted = run_count(cut, tokenizer, holdout=0.3)
    assert counted.encoder == ("fastokens" if fast_version() else "tokenizers") and counted.shards == len(cut)
    assert same(counted.counts, found[0])
    for counts in found:
        assert np.array_equal(counts.calibration, upload.calibration)
        assert np.array_equal(counts.held_out_groups, upload.held_out_groups)
        assert (counts.documents, counts.bad_record_count) == (401, 1)
        assert [bad.line for bad in counts.bad_records] == [101]
    assert found[0].files[0].sha256 == found[1].files[0].sha256
    assert upload.files[0].sha256 == hashlib.sha256(data).hexdigest()


def test_only_what_the_assistant_wrote(tmp_path, tokenizer: Tokenizer) -> None:
    """Bug: the role option is lost on the way, and users' words decide the ranking."""
    data = "\n".join([chat("Hi", role="user"), chat("The cat", role="assistant")]).encode()
    counts = count_files([CorpusFile("a.jsonl", data)], tokenizer, 0, options=ReadingOptions(roles="assistant"))
    ids = [*tokenizer.encode_texts(["The cat"])[0], tokenizer.id_of("<|im_end|>")]
    assert counts.calibration.tolist() == np.bincount(ids, minlength=tokenizer.vocab_size).tolist()
    assert counts.documents == 1 and counts.bad_records[0].reason == "no message is the assistant's"


def test_bad_files_in_a_folder_and_by_name(tmp_path, tokenizer: Tokenizer) -> None:
    """Bug: one odd file in a folder ends the count of all; a file that was named is skipped in silence."""
    (tmp_path / "good.txt").write_text("The cat")
    (tmp_path / "bad.jsonl").write_text("oops\n")
    counts = count_shards(plan_shards([tmp_path]), tokenizer)
    assert [file.name.rpartition("/")[2] for file in counts.files] == ["good.txt"] and counts.bad_record_count == 1
    with pytest.raises(CorpusError, match=r"bad\.jsonl has no usable record"):
        count_shards(plan_shards([tmp_path / "good.txt", tmp_path / "bad.jsonl"]), tokenizer)
    (tmp_path / "good.txt").unlink()
    with pytest.raises(CorpusError, match=r"None of the files.*bad\.jsonl"):
        count_shards(plan_shards([tmp_path]), tokenizer)


def test_memory_does_not_grow_with_the_corpus(tmp_path, tokenizer: Tokenizer, monkeypatch) -> None:
    """Bug: a file is read or decompressed whole, batches pile up, or every shard's histogram is kept to the end."""
    monkeypatch.setattr(run, "FAST_FROM_SIZES", 0)
    for encoder in (FastEncoder, LibraryEncoder):
        monkeypatch.setattr(encoder, "batch_characters", 50_000)
    line = json.dumps({"text": "The cat sat on the mat, and the dog saw it.\n" * 200}) + "\n"
    with gzip.open(tmp_path / "a.jsonl.gz", "wt", compresslevel=1) as file:
        for _ in range(1_500):
            file.write(line)
    count_files([jsonl("warm.jsonl", ["The cat"])], tokenizer)
    tracemalloc.start()
    try:
        counts = count_shards(plan_shards([tmp_path / "a.jsonl.gz"]), tokenizer)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counts.documents == 1_500 and peak < 6 * 2**20 < 1_500 * len(line) / 2


# The held-out split

texts = st.lists(st.text(max_size=30).map(lambda text: "x" + text), min_size=1, max_size=20)
quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(texts=texts, holdout=st.sampled_from([0, 0.1, 0.5, 0.9]), data=st.data())
def test_split_ignores_order_files_and_chunks(tokenizer: Tokenizer, texts: list[str], holdout: float, data) -> None:
    """Bug: the side depends on a position, a file name or a chunk, so that held-out text leaks into the calibration."""
    whole = count_files([jsonl("a.jsonl", texts)], tokenizer, holdout)
    shuffled = data.draw(st.permutations(texts))
    cut = data.draw(st.integers(0, len(texts)))
    files = [jsonl(f"{i}.jsonl", part) for i, part in enumerate((shuffled[:cut], shuffled[cut:])) if part]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LibraryEncoder, "batch_characters", data.draw(st.integers(1, 100)))
        parts = count_files(files, tokenizer, holdout)
    assert parts.calibration.tolist() == whole.calibration.tolist()
    assert np.array_equal(parts.held_out_groups, whole.held_out_groups)
    assert (parts.calibration_documents, parts.held_out_documents) == (
        whole.calibration_documents,
        whole.held_out_documents,
    )
    assert whole.calibration.sum() + whole.held_out.sum() == whole.tokens == sum(file.tokens for file in parts.files)
    assert whole.documents == len(texts)


def test_split_holds_out_the_share_asked_for(tokenizer: Tokenizer) -> None:
    """Bug: a hash that is not uniform, or a share of the wrong side."""
    counts = count_files([jsonl("a.jsonl", [f"text {i}" for i in range(5_000)])], tokenizer, holdout=0.2)
    assert counts.held_out_documents / counts.documents == pytest.approx(0.2, abs=0.03)


def test_same_document_never_on_both_sides(tokenizer: Tokenizer) -> None:
    """Bug: a repeated document is in the calibration and in the held-out text, which flatters the coverage."""
    for i in range(20):
        counts = count_files([jsonl("a.jsonl", [f"text {i}"] * 9)], tokenizer, holdout=0.5)
        assert {counts.calibration_documents, counts.held_out_documents} == {0, 9}


# Real tokenizers, and what is shipped

LITERAL = "Say <|eot_id|>, <end_of_turn> or <eos>: é 😀 世界\n\n\n  x"


@pytest.mark.parametrize(
    "name, vocab_size, control, turn_end",
    [
        ("gemma3", 262_145, "<start_of_turn>", "<end_of_turn>"),
        ("llama3_1", 128_256, "<|start_header_id|>", "<|eot_id|>"),
    ],
)
def test_real_tokenizers(name: str, vocab_size: int, control: str, turn_end: str) -> None:
    """Bug: a real tokenizer of 128k or 262k reads turn marks in text as control, or loses text on the way back."""
    tokenizer = load_tokenizer(npm_tokenizer_folder(name))
    assert tokenizer.vocab_size == vocab_size
    assert {control, turn_end} <= set(tokenizer.control_texts)
    (ids,) = tokenizer.encode_texts([LITERAL])
    assert tokenizer.decode(ids) == LITERAL and not set(ids) & set(tokenizer.control_ids)

    end_id = tokenizer.id_of(turn_end)
    text = count_files([CorpusFile("a.txt", LITERAL.encode())], tokenizer, holdout=0)
    assert text.calibration.shape == (vocab_size,) and text.tokens == len(ids)
    assert text.calibration[list(tokenizer.control_ids)].sum() == 0
    chats = count_files([CorpusFile("a.jsonl", chat(LITERAL).encode())], tokenizer, holdout=0)
    in_template = tokenizer.encode_chat([{"role": "user", "content": "x"}]).count(end_id)
    assert chats.calibration[end_id] == in_template > 0


def test_shipped_chats_count_cleanly(tokenizer: Tokenizer) -> None:
    """Bug: the sample corpus has lines that the reader refuses, or control-token text in its messages."""
    file = read_file(DATA / "corpora" / "chat.jsonl")
    counts = count_files([file], tokenizer)
    assert counts.documents == 602 and counts.bad_record_count == 0
    assert counts.held_out_documents > 0
    assert not any(text in file.data.decode() for text in CONTROL_TEXTS)


def test_shipped_ranking_counts() -> None:
    """Bug: the shipped counts are damaged, or no longer those of the shipped text."""
    counts = TokenCounts.load(DATA / "rankings" / "smollm2-target-generated.npz")
    assert (counts.tokens, counts.distinct, counts.documents) == (853_081, 23_294, 4_512)
    assert counts.files[0].sha256 == CorpusFile("x", (DATA / counts.files[0].name).read_bytes()).sha256
