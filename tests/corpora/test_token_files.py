"""Files of token ids: the dtype is told, nothing is lost, and other binaries are refused."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.corpus_writers import COMPRESSIONS, compressed
from vocabtrim_core.corpora import BadRecord, CorpusFile, ReadingOptions, read_documents
from vocabtrim_core.corpora.token_files import BLOCK_TOKENS
from vocabtrim_core.errors import CorpusError


def read(name: str, data: bytes, **options: str) -> tuple[list[int], list[BadRecord]]:
    bad: list[BadRecord] = []
    documents = list(read_documents(CorpusFile(name, data), bad.append, ReadingOptions(**options)))  # type: ignore[arg-type]
    return [int(i) for document in documents for i in document.ids], bad  # type: ignore[union-attr]


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@given(
    st.lists(st.integers(1_000, 49_151), min_size=2, max_size=300),
    st.sampled_from(["<u2", "<u4"]),
    st.sampled_from(list(COMPRESSIONS)),
)
def test_bare_ids_come_back(ids: list[int], dtype: str, compression: str) -> None:
    """Bug: uint32 ids are read as pairs of uint16, or the other way round."""
    data = compressed(np.array(ids, dtype).tobytes(), compression)
    assert read("train.bin" + COMPRESSIONS[compression], data) == (ids, [])


@given(
    st.lists(st.integers(0, 127), min_size=1, max_size=50),
    st.sampled_from(["<u2", "<u4", "<i4", "<i8", "<u8", ">u2", "|u1"]),
    st.sampled_from(list(COMPRESSIONS)),
    st.booleans(),
)
def test_npy_files(ids: list[int], dtype: str, compression: str, rows: bool) -> None:
    """Bug: the header is counted as tokens, the byte order ignored, or rows read as columns."""
    array = np.array(ids, dtype)
    data = compressed(npy(array.reshape(1, -1) if rows else array), compression)
    assert read("train.npy" + COMPRESSIONS[compression], data) == (ids, [])


@pytest.mark.parametrize("magic, version, dtype", [(20240520, 1, "<u2"), (20240801, 7, "<u4")])
def test_llmc_headers(magic: int, version: int, dtype: str) -> None:
    """Bug: the header of llm.c's files is counted as tokens."""
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, 5
    ids = [7, 8, 9, 10, 300]
    assert read("train.bin", header.tobytes() + np.array(ids, dtype).tobytes()) == (ids, [])


@pytest.mark.parametrize("compression", ["", "gzip"])
def test_files_that_are_not_as_their_header_says(compression: str) -> None:
    """Bug: a download that was cut, or a second array in the file, is missing from the counts in silence."""
    llmc = np.zeros(256, "<i4")
    llmc[:3] = 20240520, 1, 5_000
    ids = np.arange(5_000, dtype="<u2")
    for name, whole in (("a.npy", npy(ids)), ("a.bin", llmc.tobytes() + ids.tobytes())):
        for data, words in ((whole[:-2_000], "cut short"), (whole + npy(ids), "bytes after")):
            read_ids: list[int] = []
            file = CorpusFile(name + COMPRESSIONS[compression], compressed(data, compression))
            with pytest.raises(CorpusError, match=words):
                read_ids.extend(i for document in read_documents(file, print) for i in document.ids)  # type: ignore[union-attr]
            # Where the size is known before, nothing is read; else what came before the cut is.
            assert read_ids == (ids.tolist()[: 4_000 if words == "cut short" else 5_000] if compression else [])


def test_chosen_dtype() -> None:
    """Bug: ids that could be either are not read as the user says."""
    data = np.array([5, 6], "<u4").tobytes()
    assert read("a.bin", data)[0] == [5, 6]
    assert read("a.bin", data, token_dtype="uint16")[0] == [5, 0, 6, 0]


def test_blocks_can_be_held_out() -> None:
    """Bug: a whole file is one document, so that none or all of it is held out."""
    data = np.arange(5 * BLOCK_TOKENS + 1, dtype="<u2").tobytes()
    documents = list(read_documents(CorpusFile("a.bin", data), print))
    assert [len(document.ids) for document in documents] == [BLOCK_TOKENS] * 5 + [1]  # type: ignore[arg-type]
    assert [document.line for document in documents] == [1, 2, 3, 4, 5, 6]


def test_damaged_ids() -> None:
    """Bug: negative ids reach the histogram, or a file that was cut is read without a word."""
    ids, bad = read("a.npy", npy(np.array([1, -5, 2])[:1].repeat(3)))
    assert ids == [1, 1, 1] and not bad
    with pytest.raises(CorpusError, match="-5 is no token id"):
        read("a.npy", npy(np.array([1, -5, 2])))
    ids, bad = read("a.bin", np.array([3_000, 4_000], "<u2").tobytes() + b"x")
    assert ids == [3_000, 4_000] and "last 1 bytes" in bad[0].reason


@pytest.mark.parametrize(
    "name, data, words",
    [
        ("a.bin", b"", "empty"),
        ("pytorch_model.bin", b"PK\x03\x04" + b"\1" * 50, "model's weights"),
        ("a.npy", npy(np.array([1.5])), "float64 values"),
        ("a.npy", npy(np.asfortranarray(np.ones((2, 3), "<u2"))), "2 dimensions"),
        ("a.npy", npy(np.array([1]))[:20], "not a .npy file"),
        ("a.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': 'O', 'x", "not a .npy file"),
    ],
)
def test_what_is_no_token_file(name: str, data: bytes, words: str) -> None:
    """Bug: weights, floats or pickled objects are counted as tokens, or unpickled."""
    with pytest.raises(CorpusError, match=words):
        read(name, data)
