"""The windows of a token file have each token once, in order, and a change of the file is noticed."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.common.errors import BadInput
from elastane.integrations.datasets import TokenFile


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "tokens.bin"
    np.arange(1000, dtype=np.uint16).tofile(path)
    return path


@pytest.mark.parametrize("length", [1, 7, 64, 999])
def test_windows_tile_the_file_and_targets_are_one_token_further(numbers, length):
    windows = TokenFile(numbers, length)
    seen = [windows[i] for i in range(len(windows))]
    assert np.concatenate([inputs for inputs, _ in seen]).tolist() == list(range(len(windows) * length))
    assert all((targets == inputs + 1).all() for inputs, targets in seen)
    assert 1000 - len(windows) * length <= length
    assert {part.dtype for sample in seen for part in sample} == {np.dtype(np.int64)}


def test_an_npy_file_has_its_own_type(tmp_path):
    np.save(tmp_path / "tokens.npy", np.array([70000, 1, 2], np.uint32))
    inputs, targets = TokenFile(tmp_path / "tokens.npy", 2)[0]
    assert (inputs.tolist(), targets.tolist()) == ([70000, 1], [1, 2])


def test_raw_tokens_may_have_another_type(tmp_path):
    np.array([70000, 1, 2], np.uint32).tofile(tmp_path / "tokens.bin")
    assert TokenFile(tmp_path / "tokens.bin", 2, dtype=np.uint32)[0][0].tolist() == [70000, 1]


def test_documents_are_numbered_within_a_window(tmp_path):
    np.array([5, 5, 0, 6, 0, 7, 7], np.uint16).tofile(tmp_path / "tokens.bin")
    assert TokenFile(tmp_path / "tokens.bin", 6, separator=0)[0][2].tolist() == [0, 0, 0, 1, 1, 2]


@given(tokens=st.lists(st.integers(0, 3), min_size=6, max_size=40), length=st.integers(1, 5))
def test_positions_share_a_number_if_no_document_ends_between_them(tmp_path_factory, tokens, length):
    path = tmp_path_factory.mktemp("any") / "tokens.bin"
    np.array(tokens, np.uint16).tofile(path)
    for sample in map(TokenFile(path, length, separator=0).__getitem__, range((len(tokens) - 1) // length)):
        inputs, _, documents = sample
        assert documents[0] == 0
        assert np.diff(documents).tolist() == (inputs[:-1] == 0).astype(int).tolist()


def test_a_pickled_token_file_has_the_path_and_not_the_tokens(numbers):
    windows = TokenFile(numbers, 10)
    text = pickle.dumps(windows)
    assert len(text) < 500
    assert pickle.loads(text)[3][0].tolist() == windows[3][0].tolist()  # noqa: S301


def test_the_fingerprint_covers_the_content(numbers, tmp_path):
    before = TokenFile(numbers, 10).fingerprint()
    (tmp_path / "copy.bin").write_bytes(numbers.read_bytes())
    assert TokenFile(tmp_path / "copy.bin", 10).fingerprint() == before
    assert TokenFile(numbers, 11).fingerprint() != before
    np.arange(1, 1001, dtype=np.uint16).tofile(numbers)
    assert TokenFile(numbers, 10).fingerprint() != before


def test_a_window_outside_the_file_is_refused(numbers):
    windows = TokenFile(numbers, 10)
    with pytest.raises(IndexError, match="window 99 of 99"):
        windows[99]


@pytest.mark.parametrize(
    ("write", "length", "words"),
    [
        (lambda path: None, 4, "cannot be read as tokens"),
        (lambda path: path.write_bytes(b""), 4, "has 0 tokens"),
        (lambda path: path.write_bytes(b"abc"), 1, "cannot be read as tokens"),
        (lambda path: path.write_bytes(b"abcd"), 2, "has 2 tokens"),
        (lambda path: path.write_bytes(b"abcd"), 0, "invalid length: 0"),
    ],
)
def test_the_error_names_a_file_without_tokens(tmp_path, write, length, words):
    write(tmp_path / "tokens.bin")
    with pytest.raises(BadInput, match=words):
        TokenFile(tmp_path / "tokens.bin", length)


def test_an_array_of_another_kind_is_refused(tmp_path):
    np.save(tmp_path / "tokens.npy", np.zeros((3, 4)))
    with pytest.raises(BadInput, match="holds float64 of shape"):
        TokenFile(tmp_path / "tokens.npy", 2)
