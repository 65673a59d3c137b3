"""The data loader: look-up order, verification, cache, and what it says when there is nothing. No test downloads."""

import gzip
import io
import os
import subprocess
import sys
import zipfile
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from kernelcg import datasets
from kernelcg.datasets import Checksum, DatasetCorrupt, DatasetNotFound, Known, Source

X = np.array([[0.5, 10.0], [1.5, 20.0], [-2.0, 30.0], [3.25, 40.0], [4.0, 50.0], [5.0, 61.0]])
TARGETS = {
    "regression": [0.1, -0.2, 0.3, 5.0, 7.0, 8.5],
    "binary": [1, -1, -1, 1, 1, 1],
    "multiclass": [0, 2, 1, 1, 0, 2],
}
MASK = np.eye(6, 10, k=2, dtype=int)


def table(task="regression"):
    return np.column_stack([X, TARGETS[task]])


def text(values):
    return "".join(",".join(map(repr, row)) + "\n" for row in np.asarray(values).tolist())


def packed(values):
    return gzip.compress(text(values).encode())


def zipped(member, content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, content)
    return buffer.getvalue()


def sums(values):
    """The five sums, from their definition."""
    n, d = len(values), values.shape[1] - 1
    cells = [(i + 1, j + 1, values[i, j]) for i in range(n) for j in range(d)]
    return Checksum(
        sum(values[:, -1]),
        sum((i + 1) * values[i, -1] for i in range(n)),
        sum(x for _, _, x in cells),
        sum(j * x for _, j, x in cells),
        sum(i * j * x for i, j, x in cells),
    )


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty data directory and an empty cache; a data set `toy` with neither file nor source."""
    local, home = tmp_path / "data", tmp_path / "home"
    local.mkdir()
    monkeypatch.setenv("KERNELCG_DATA", str(local))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    monkeypatch.setattr(sys, "platform", "linux")
    know(monkeypatch)
    return local


def know(monkeypatch, task="regression", sources=(), mask=None):
    monkeypatch.setitem(datasets.KNOWN, "toy", Known(6, 2, task, "six rows"))
    monkeypatch.setitem(datasets.SUMS, "toy", sums(table(task)))
    if sources:
        monkeypatch.setitem(datasets.SOURCES, "toy", tuple(sources))
    if mask is not None:
        weights = [(i + 1) * (j + 1) * mask[i, j] for i in range(6) for j in range(10)]
        monkeypatch.setitem(datasets.MASK_SUMS, "toy", sum(weights))


def no_network(url):
    pytest.fail(f"tried to download {url}")


def test_reads_the_local_directory_first(place):
    (place / "toy.csv.gz").write_bytes(packed(table()))
    found = datasets.load("toy", fetch=no_network)
    np.testing.assert_array_equal(found.X, X)
    np.testing.assert_array_equal(found.y, TARGETS["regression"])
    assert (found.name, found.task, found.description) == ("toy", "regression", "six rows")
    assert found.X.dtype == found.y.dtype == np.float64
    assert found.source == str(place / "toy.csv.gz")
    assert found.test_mask is None


def test_reads_the_cache_when_the_directory_lacks_the_file(place, monkeypatch):
    cache = datasets.cache_directory()
    cache.mkdir(parents=True)
    (cache / "toy.csv.gz").write_bytes(packed(table()))
    assert datasets.load("toy", fetch=no_network).source == str(cache / "toy.csv.gz")
    monkeypatch.delenv("KERNELCG_DATA")
    assert datasets.load("toy", fetch=no_network).source == str(cache / "toy.csv.gz")


def changed(row, column, value):
    values = table()
    values[row, column] = value
    return values


WRONG_FILES = {
    "cut short": (packed(table())[:-20], "cannot be read"),
    "no gzip": (b"no gzip at all", "cannot be read"),
    "words": (gzip.compress(b"1,2,three\n"), "cannot be read"),
    "row missing": (packed(table()[:5]), "5 rows and 3 columns instead of 6 and 3"),
    "column missing": (packed(table()[:, 1:]), "6 rows and 2 columns"),
    "target changed": (packed(changed(2, 2, 0.31)), "target sums to"),
    "feature changed": (packed(changed(2, 1, 30.1)), "features sum to"),
    "NaN": (packed(changed(2, 1, np.nan)), "NaN"),
    "columns swapped": (packed(table()[:, [1, 0, 2]]), "columns are in another order"),
    "rows swapped": (packed(table()[[1, 0, 2, 3, 4, 5]]), "rows are in another order"),
    "inputs swapped": (
        packed(np.column_stack([X[[1, 0, 2, 3, 4, 5]], TARGETS["regression"]])),
        "rows are in another order",
    ),
}


@pytest.mark.parametrize(("content", "complaint"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_refuses_a_wrong_file_and_says_what_is_wrong(place, content, complaint):
    (place / "toy.csv.gz").write_bytes(content)
    with pytest.raises(DatasetCorrupt, match=complaint) as error:
        datasets.load("toy", fetch=no_network)
    assert str(place / "toy.csv.gz") in str(error.value)
    assert "delete or replace" in str(error.value)


def test_downloads_once_and_caches_what_it_verified(place, monkeypatch):
    know(monkeypatch, sources=[Source("http://first/toy.csv")])
    asked = []

    def fetch(url):
        asked.append(url)
        return text(table()).encode()

    first = datasets.load("toy", fetch=fetch)
    again = datasets.load("toy", fetch=no_network)
    assert asked == ["http://first/toy.csv"]
    assert first.source == "http://first/toy.csv"
    assert again.source == str(datasets.cache_directory() / "toy.csv.gz")
    np.testing.assert_array_equal(first.X, again.X)
    np.testing.assert_array_equal(first.y, again.y)
    assert [file.name for file in datasets.cache_directory().iterdir()] == ["toy.csv.gz"]


@pytest.mark.parametrize(
    "first_answer",
    [OSError("no route"), text(table()[::-1]).encode(), b"<html>moved</html>"],
    ids=["unreachable", "other order", "no table"],
)
def test_goes_on_to_the_next_source(place, monkeypatch, first_answer):
    know(monkeypatch, sources=[Source("http://first/toy.csv"), Source("http://second/toy.csv")])

    def fetch(url):
        if "second" in url:
            return text(table()).encode()
        if isinstance(first_answer, OSError):
            raise first_answer
        return first_answer

    assert datasets.load("toy", fetch=fetch).source == "http://second/toy.csv"


def test_a_source_in_another_order_is_not_kept(place, monkeypatch):
    know(monkeypatch, sources=[Source("http://first/toy.csv")])
    with pytest.raises(DatasetNotFound, match="rows are in another order"):
        datasets.load("toy", fetch=lambda _: text(table()[::-1]).encode())
    assert not datasets.cache_directory().exists()


def test_arranges_zip_members_columns_and_labels(place, monkeypatch):
    source = Source("http://uci/toy.zip", "toy.data", delimiter=None, header=1, target_first=True)
    know(monkeypatch, task="binary", sources=[source])
    rows = [f"{1 + (y > 0)} {a} {b}" for (a, b), y in zip(X, TARGETS["binary"], strict=True)]
    content = zipped("toy.data", "label a b\n" + "\n".join(rows))
    np.testing.assert_array_equal(datasets.load("toy", fetch=lambda _: content).y, TARGETS["binary"])


def test_numbers_letters_and_unpacks_gzip_members(place, monkeypatch):
    source = Source("http://uci/toy.zip", "toy.data.gz", target_first=True, letters=True)
    know(monkeypatch, task="multiclass", sources=[source])
    rows = ["ACZ"[y] + f",{a},{b}" for (a, b), y in zip(X, TARGETS["multiclass"], strict=True)]
    content = zipped("toy.data.gz", gzip.compress("\n".join(rows).encode()))
    np.testing.assert_array_equal(datasets.load("toy", fetch=lambda _: content).y, TARGETS["multiclass"])


def test_test_masks_come_with_the_data(place, monkeypatch):
    know(monkeypatch, sources=[Source("http://x/toy/data.csv.gz")], mask=MASK)
    answers = {"http://x/toy/data.csv.gz": packed(table()), "http://x/toy/test_mask.csv.gz": packed(MASK)}
    for fetch in (answers.__getitem__, no_network):
        found = datasets.load("toy", fetch=fetch).test_mask
        assert found.dtype == bool
        np.testing.assert_array_equal(found, MASK.astype(bool))


def test_refuses_wrong_test_masks(place, monkeypatch):
    know(monkeypatch, mask=MASK)
    (place / "toy.csv.gz").write_bytes(packed(table()))
    (place / "toy.test_mask.csv.gz").write_bytes(packed(MASK[::-1]))
    with pytest.raises(DatasetCorrupt, match="test masks"):
        datasets.load("toy", fetch=None)


def test_says_what_was_tried_and_what_to_do(place, monkeypatch):
    know(monkeypatch, sources=[Source("http://first/toy.csv")])
    (place / "protein.csv.gz").touch()

    def fetch(url):
        raise OSError("no route to host")

    with pytest.raises(FileNotFoundError) as error:
        datasets.load("toy", fetch=fetch)
    message = str(error.value)
    assert str(place / "toy.csv.gz") in message
    assert str(datasets.cache_directory() / "toy.csv.gz") in message
    assert "http://first/toy.csv: no route to host" in message
    assert "Set KERNELCG_DATA to a directory that holds toy.csv.gz" in message
    assert message.endswith("need no download: protein.")


def test_downloads_can_be_forbidden_and_some_sets_have_none(place, monkeypatch):
    with pytest.raises(DatasetNotFound, match="no public source"):
        datasets.load("toy", fetch=no_network)
    know(monkeypatch, sources=[Source("http://first/toy.csv")])
    monkeypatch.delenv("KERNELCG_DATA")
    with pytest.raises(DatasetNotFound, match=r"KERNELCG_DATA is not set(.|\n)*not allowed"):
        datasets.load("toy", fetch=None)


def test_unknown_names_raise_and_known_ones_are_listed():
    with pytest.raises(ValueError, match=r"no data set 'iris'.*concrete"):
        datasets.load("iris")


def test_the_tables_belong_together():
    assert set(datasets.SUMS) == set(datasets.KNOWN) == set(datasets.names())
    assert set(datasets.SOURCES) <= set(datasets.KNOWN)
    assert set(datasets.MASK_SUMS) == {name for name in datasets.KNOWN if name.startswith("uci_")}
    assert {"concrete", "powerplant", "protein", "spambase", "eeg", "credit"} <= set(datasets.SOURCES)


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ("linux", "cache/kernelcg"),
        ("darwin", "home/Library/Caches/kernelcg"),
        ("win32", "local/kernelcg/Cache"),
    ],
)
def test_the_cache_follows_the_platform(tmp_path, monkeypatch, platform, expected):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert datasets.cache_directory() == tmp_path / expected


def test_importing_it_imports_no_extras():
    code = "import sys, kernelcg.datasets; assert not {'sklearn', 'pandas'} & set(sys.modules)"
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


PAPER_SUMS = {"concrete": 36892.5, "powerplant": 4347364.41, "protein": 354340.205, "credit": -400, "spambase": -975}
"""Of the targets, as published with the paper's folds."""


@pytest.mark.data
@pytest.mark.skipif("KERNELCG_DATA" not in os.environ, reason="KERNELCG_DATA is not set")
@pytest.mark.parametrize("name", [name for name, known in datasets.KNOWN.items() if known.n < 50_000])
def test_the_real_files_are_as_described(name):
    found, known = datasets.load(name, fetch=None), datasets.KNOWN[name]
    assert found.X.shape == (known.n, known.d)
    assert found.y.sum() == pytest.approx(PAPER_SUMS.get(name, found.y.sum()), rel=1e-12)
    values = np.column_stack([found.X, found.y])
    np.testing.assert_allclose(astuple(sums(values[:, :])), astuple(datasets.SUMS[name]), rtol=1e-5)
    assert (found.test_mask is None) == (name not in datasets.MASK_SUMS)
    if known.task == "binary":
        assert set(found.y) == {-1, 1}
    if known.task == "multiclass":
        assert set(found.y) == set(range(len(set(found.y))))
