"""Rows that lie elsewhere: read in parts, copied to a file, and read by the workers of a cluster themselves."""

import gc
import os
import shutil
import signal
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from both_workers import await_both
from strategies import normal

from kernelcg import backends
from kernelcg.backends.dask_rows import DaskRows, dask_array
from kernelcg.backends.parquet_rows import ParquetRows
from kernelcg.backends.references import Reference
from kernelcg.backends.row_sources import RowSource, copied
from kernelcg.errors import ClusterFailed
from kernelcg.estimators.data import as_tensor
from kernelcg.kernels import Matern

ROWS, BLOCK = 400, 150
NAMES = ["a", "b"]


def numbers():
    return normal(ROWS, 2, 1).numpy()


def in_chunks(folder):
    return DaskRows.of(pytest.importorskip("dask.array").from_array(numbers(), chunks=(130, 1)))


def in_frame(folder):
    frames, pandas = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    return DaskRows.of(dask_array(frames.from_pandas(pandas.DataFrame(numbers(), columns=NAMES), npartitions=3)))


def in_parquet(folder):
    pytest.importorskip("pyarrow")
    pandas, X = pytest.importorskip("pandas"), numbers()
    table = pandas.DataFrame({"a": X[:, 0], "word": "x", "b": X[:, 1]})
    table[:250].to_parquet(folder / "1.parquet", row_group_size=100)
    table[250:].to_parquet(folder / "2.parquet")
    return ParquetRows.of(folder, NAMES)


def in_zarr(folder):
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(str(folder / "X.zarr"), shape=(ROWS, 2), chunks=(130, 2), dtype="float64")
    array[:] = numbers()
    return DaskRows.of(dask_array(array))


SOURCES = [in_chunks, in_frame, in_parquet, in_zarr]


@pytest.mark.parametrize("make", SOURCES)
def test_parts_and_copies_have_the_numbers(make, tmp_path):
    source, X = make(tmp_path), numbers()
    assert source.shape == X.shape
    for start, stop in ((0, 0), (5, 120), (120, 260), (0, ROWS), (399, ROWS)):
        assert np.array_equal(source.read(start, stop), X[start:stop])
    found = copied(source)
    assert np.array_equal(found, X)
    assert not found.flags.writeable
    assert Reference.of(found).source is source
    tensor = as_tensor(found)
    assert tensor.data_ptr() == found.ctypes.data, "it was copied into memory"
    assert Reference.of(found).holds(tensor)
    for other in (found[1:], found[:, :1], found.copy(), found.T):
        assert Reference.of(other) is None


@pytest.mark.parametrize("make", SOURCES)
def test_workers_read_them_and_read_them_again_when_one_is_lost(make, tmp_path, client):
    found, V = copied(make(tmp_path)), normal(ROWS, 2, 2)
    sending = backends.Dask(client=client, block_rows=BLOCK)
    reading = replace(sending, reference=Reference.of(found))
    sent, K = sending.bind(Matern(1.0), normal(ROWS, 2, 1)), reading.bind(Matern(1.0), as_tensor(found))
    assert K.placed.is_by_reference
    expected = sent.product(V)
    assert torch.equal(K.product(V), expected)
    os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)
    assert torch.equal(K.product(V), expected)
    await_both(client)


class Counted(RowSource):
    """Rows of ones, of which somebody keeps an account."""

    read_at_once: list[int]

    def read(self, start, stop):
        self.read_at_once.append(stop - start)
        return np.ones((stop - start, self.features))


def counted(cuts, features=3):
    source = Counted(cuts, features)
    object.__setattr__(source, "read_at_once", [])
    return source


def test_a_copy_takes_one_part_at_a_time_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    source = counted((0, 7, 7, 12))
    found = copied(source)
    assert source.read_at_once == [stop - start for start, stop in pairwise(source.cuts)]
    assert np.array_equal(found, np.ones((12, 3)))
    assert not list(tmp_path.iterdir())
    part = found[3:]
    del found
    gc.collect()
    assert part.sum() == 27, "the memory lives as long as anybody looks at it"
    assert copied(counted((0,))).shape == (0, 3)


def test_a_disk_that_is_too_small_is_told_before_anything_is_read(monkeypatch):
    source, usage = counted((0, 1000)), shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=23_999))
    with pytest.raises(OSError, match="TMPDIR"):
        copied(source)
    assert source.read_at_once == []


def test_chunks_that_are_not_as_announced():
    arrays = pytest.importorskip("dask.array")
    false = arrays.from_array(np.ones((6, 2)), chunks=(3, 2)).map_blocks(lambda x: x[:2], chunks=((3, 3), (2,)))
    with pytest.raises(ValueError, match="rows 0 to 3 of X"):
        copied(DaskRows.of(false))


def test_what_is_not_numbers_is_named(tmp_path):
    in_parquet(tmp_path)
    with pytest.raises(TypeError, match=r"column 'word' of .* holds .*string"):
        ParquetRows.of(tmp_path)
    with pytest.raises(ValueError, match="no column 'c', but a, word, b"):
        ParquetRows.of(tmp_path / "1.parquet", ["a", "c"])
    with pytest.raises(FileNotFoundError, match="no Parquet file"):
        ParquetRows.of(tmp_path / "nothing")
    frames, pandas = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    with pytest.raises(TypeError, match="column 'word' holds"):
        dask_array(frames.from_pandas(pandas.DataFrame({"a": [1.0], "word": ["x"]})))
    with pytest.raises(TypeError, match="must be a number"):
        DaskRows.of(pytest.importorskip("dask.array").from_array(np.array([["x"]])))
    assert dask_array(numbers()) is None


def test_a_file_that_is_gone(tmp_path):
    source = in_parquet(tmp_path)
    (tmp_path / "2.parquet").unlink()
    assert source.read(0, 250).shape == (250, 2)
    with pytest.raises(ClusterFailed, match=r"2\.parquet"):
        source.read(240, 260)


def test_parquet_needs_a_package(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        ParquetRows.of(tmp_path)
