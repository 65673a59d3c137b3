"""The benchmark for GPUs on a few rows of the CPU: every data set, the table, and going on where it stopped."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cuda_stand_in import CudaStandIn

from kernelcg import datasets

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch):
    if not BENCHMARKS.is_dir():
        pytest.skip("there is no source tree")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu
    import gpu_fits

    return SimpleNamespace(table=gpu, fits=gpu_fits)


def invented(name):
    """Return 60 rows in the form of a data set, some columns of them."""
    known, random = datasets.KNOWN[name], np.random.default_rng(0)
    X = random.uniform(-80, 80, (60, 2)) if name == "egm96" else random.normal(size=(60, min(known.d, 5)))
    y = np.sin(X[:, 0]) + 0.1 * random.normal(size=60)
    if known.task != "regression":
        y = np.digitize(y, [-0.5, 0.5]).astype(float) if known.task == "multiclass" else np.sign(y)
    mask = np.arange(60)[:, None] % 10 == 0
    return datasets.Dataset(name, X, y, known.task, "", "", mask if name.startswith("uci") else None)


def test_every_row_can_be_measured(scripts, monkeypatch):
    monkeypatch.setattr(datasets, "load", invented)
    for name in scripts.fits.CASES:
        found = scripts.fits.measured(name, "cpu", most=40, max_iter=1)
        assert set(found) <= {*scripts.table.COLUMNS}, name
        scores = [found[score] for score in ("rmse", "error", "nlpd") if score in found]
        assert len(scores) == 2
        assert all(np.isfinite(float(score)) for score in scores)
        assert json.loads(json.dumps(found)) == found


def test_places_are_on_the_sphere(scripts, monkeypatch):
    monkeypatch.setattr(datasets, "load", invented)
    found, places = scripts.fits.on_the_sphere("egm96", None), invented("egm96").X
    np.testing.assert_allclose(np.linalg.norm(found.X, axis=1), 1)
    heights = np.sin(np.radians(places[:, 1]))
    assert np.isin(found.X_test[:, 2].round(12), heights.round(12)).all()


def test_the_table_goes_on_where_it_stopped(scripts, monkeypatch, tmp_path):
    monkeypatch.setattr(scripts.table, "RESULTS", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", "none")
    asked = []

    def process(command, timeout, env, **_):
        asked.append(command[-1])
        assert ("TRITON_CACHE_DIR" in env and "KERNELCG_CACHE" in env) == (command[-1] in scripts.table.REPEATED)
        if command[-1] == "uci_pol":
            raise subprocess.TimeoutExpired(command, timeout)
        if command[-1] == "letter":
            return SimpleNamespace(returncode=1, stdout="", stderr="DatasetNotFound: letter")
        if command[-1] == "eeg":
            return SimpleNamespace(returncode=1, stdout="", stderr="Traceback\nOutOfMemoryError: too much")
        first = asked.count(command[-1]) == 1
        found = {"rows": 7, "features": 2, "seconds": "9" if first else "1.5", "remark": "certified"}
        found |= {"numbers": "b" if command[-1] == "uci_elevators" and first else "a", "learning_steps": 76 + first}
        return SimpleNamespace(returncode=0, stdout=json.dumps(found), stderr="")

    monkeypatch.setattr(scripts.table.subprocess, "run", process)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "fits", "--date", "2000-01-01"])
    with CudaStandIn():
        scripts.table.main()
        twice = ("uci_protein", "uci_elevators")  # of uci_pol the first process took too long
        assert asked == [name for case in scripts.fits.CASES for name in (case,) * (1 + (case in twice))]
        known = len(asked)
        scripts.table.main()
        assert asked[known:] == ["letter"]  # the set that was not there
    with (tmp_path / "gpu_2000-01-01.csv").open(newline="") as file:
        rows = {row["work"].removeprefix("fit "): row for row in csv.DictReader(file)}
    assert set(rows) == set(scripts.fits.CASES) - {"letter"}
    assert (rows["uci_protein"]["seconds"], rows["uci_protein"]["cold_seconds"]) == ("1.5", "9")
    assert rows["uci_protein"]["remark"] == "certified; the same numbers in two processes"
    assert "OTHER NUMBERS" in rows["uci_elevators"]["remark"]
    assert "77 and 76 steps" in rows["uci_elevators"]["remark"]
    assert rows["uci_protein"]["rows"] == "7"
    assert "not within" in rows["uci_pol"]["remark"]
    assert rows["eeg"]["remark"] == "OutOfMemoryError: too much"
    assert all(row["date"] == "2000-01-01" and "torch" in row["versions"] and row["device"] for row in rows.values())


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_one_command_measures_although_a_test_failed(scripts, tmp_path):
    """It ends with an error all the same, and its seconds are those of the whole."""
    python, told = tmp_path / "python3", tmp_path / "told"
    python.write_text(f'#!/bin/sh\necho "$@" >> {told}\ncase "$*" in *pytest\\ -q*) sleep 1; exit 1;; esac\n')
    python.chmod(0o755)
    command = ["make", "test-gpu", f"BIN={tmp_path}", "INSTALLED=", "WITHIN=590"]
    done = subprocess.run(command, cwd=BENCHMARKS.parent, capture_output=True, check=False)
    asked = told.read_text().splitlines()
    assert done.returncode != 0
    assert asked[0] == "benchmarks/gpu.py check"
    assert "pytest -q -m gpu" in asked[2]
    assert 500 < float(asked[3].removeprefix("benchmarks/gpu.py products fits --within ")) < 590


def test_a_table_of_an_older_version_gets_the_new_columns(scripts, monkeypatch, tmp_path):
    monkeypatch.setattr(scripts.table, "RESULTS", tmp_path)
    old = dict.fromkeys(scripts.table.COLUMNS[:-3], "")
    with (tmp_path / "gpu_2000-01-01.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, old)
        writer.writeheader()
        writer.writerow({**old, "work": "product", "remark": "old"})
    with CudaStandIn():
        rows = scripts.table.Rows("2000-01-01")
        rows.add("fit letter", ("default", "", "", "", "auto", "default"), lambda: {"cold_seconds": "3"})
    with rows.path.open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["remark"], first["cold_seconds"]) == ("old", "")
    assert (second["work"], second["cold_seconds"]) == ("fit letter", "3")


def test_stages_are_counted_and_numbers_compared(scripts, monkeypatch):
    monkeypatch.setattr(datasets, "load", invented)
    one, same = (scripts.fits.measured("uci_pol", "cpu", most=40, max_iter=2) for _ in range(2))
    assert one["numbers"] == same["numbers"]
    assert one["numbers"] != scripts.fits.measured("uci_pol", "cpu", most=39, max_iter=2)["numbers"]
    rows, words, count, *_ = one["stages"].rpartition("; ")[2].replace(" rows ", " ").split()
    assert (rows, words) == ("40", "direct")
    assert int(count) >= 2


def test_a_run_with_little_time_leaves_rows_to_the_next(scripts, monkeypatch, tmp_path):
    monkeypatch.setattr(scripts.table, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "fits", "--within", "1", "--date", "2000-01-01"])
    with CudaStandIn():
        scripts.table.main()
    assert not (tmp_path / "gpu_2000-01-01.csv").exists()
