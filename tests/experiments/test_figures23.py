"""Figures 2 and 3 as an experiment: data, tables that survive interruptions, the quick mode, the drawing."""

import csv
import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import figures23
import splits

draw_figures23 = pytest.importorskip("draw_figures23", reason="matplotlib is not installed")

EXPERIMENTS = Path(figures23.__file__).parent
TINY = ["--quick", "--kernels", "iso", "--sets", "diabetes", "--points", "3"]


# data


@pytest.mark.parametrize("name", splits.BUNDLED)
def test_training_rows_are_standardised_and_test_rows_are_not_among_them(name):
    split = splits.load(name, 0)
    np.testing.assert_allclose(split.X.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(split.X.std(0, ddof=1), 1)
    X, _ = splits.rows_of(name)
    assert len(split.y) + len(split.y_test) == len(X)
    rows = {row.tobytes() for row in split.X}
    assert not any(row.tobytes() in rows for row in split.X_test)
    if splits.SETS[name].task == "classification":
        assert set(split.y) == set(split.y_test) == {0.0, 1.0}


@pytest.mark.data
@pytest.mark.parametrize(("name", "sizes"), [("concrete", (997, 33)), ("spambase", (4532, 69))])
def test_the_folds_are_those_of_the_paper(name, sizes):
    if not os.environ.get("KERNELCG_DATA"):
        pytest.skip("KERNELCG_DATA is not set")
    split = splits.load(name, 1)
    assert (len(split.y), len(split.y_test)) == sizes
    with pytest.raises(ValueError, match="verified"):
        splits.load(name, 25)


def test_folds_that_do_not_exist():
    with pytest.raises(ValueError, match="folds 0 to 9"):
        splits.load("diabetes", 10)


# runs


def job(**changes):
    known = {"dataset": "protein", "kernel": "ARD", "method": "CHOL-restarted", "fold": 1, "device": "cpu"}
    return figures23.Job(**(known | {"budget": 1.0, "points": 3, "seed": 0} | changes))


def test_large_sets_restart_after_every_step():
    assert job().how().batch == 1
    assert job(dataset="concrete").how().batch == 3
    assert job(method="CHOL").how().batch is None


def rows_of(file, *leave_out):
    with file.open(newline="") as stream:
        return [{key: row[key] for key in row if key not in leave_out} for row in csv.DictReader(stream)]


def stub(job):
    point = {"step": 0, "training_seconds": 0.0, "seconds": 0.1, "products": 0.0, "error": 1.0, "nll": job.seed}
    return {"status": "finished", "n": 10}, [point, point | {"step": 5}]


def test_an_interrupted_experiment_goes_on_where_it_was(tmp_path, monkeypatch):
    done = []

    def until_the_fourth(job):
        done.append(job.method)
        if len(done) == 4:
            raise KeyboardInterrupt
        return stub(job)

    whole, parts = ["--out", str(tmp_path / "whole"), *TINY], ["--out", str(tmp_path / "parts"), *TINY]
    monkeypatch.setattr(figures23, "performed", stub)
    figures23.main(whole)
    monkeypatch.setattr(figures23, "performed", until_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        figures23.main(parts)
    monkeypatch.setattr(figures23, "performed", lambda job: done.append(job.method) or stub(job))
    figures23.main(parts)
    assert len(done) == 1 + len(figures23.METHODS)
    for name in ("figures23_quick_runs.csv", "figures23_quick_curves.csv"):
        assert rows_of(tmp_path / "whole" / name, "date") == rows_of(tmp_path / "parts" / name, "date")
    figures23.main(parts)
    assert len(done) == 1 + len(figures23.METHODS)


def test_other_settings_or_a_failure_are_run_again(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(figures23, "performed", lambda job: done.append(job) or stub(job))
    one = ["--out", str(tmp_path), *TINY, "--methods", "CG"]
    for more in ([], [], ["--budget", "2"], ["--seed", "1"], ["--again", "--seed", "1"]):
        figures23.main([*one, *more])
    assert len(done) == 4
    assert {row["nll"] for row in rows_of(tmp_path / "figures23_quick_curves.csv")} == {"1"}
    monkeypatch.setattr(figures23, "performed", lambda job: ({"status": figures23.FAILED, "reason": "no luck"}, []))
    assert figures23.main([*one, "--again"]) == 1
    monkeypatch.setattr(figures23, "performed", lambda job: done.append(job) or stub(job))
    assert figures23.main(one) == 0
    assert len(done) == 5


def test_a_run_that_is_redone_is_kept_until_there_is_another(tmp_path, monkeypatch):
    one = ["--out", str(tmp_path), *TINY, "--methods", "CG"]
    monkeypatch.setattr(figures23, "performed", stub)
    figures23.main(one)
    known = rows_of(tmp_path / "figures23_quick_runs.csv")
    monkeypatch.setattr(figures23, "performed", lambda job: ({"status": figures23.FAILED, "reason": "no luck"}, []))
    assert figures23.main([*one, "--again"]) == 1
    assert rows_of(tmp_path / "figures23_quick_runs.csv") == known
    monkeypatch.setattr(figures23, "performed", lambda job: (stub(job)[0], [{"step": 0}]))
    with pytest.raises(KeyError):  # the curve cannot be written: the run must not look finished
        figures23.main([*one, "--again"])
    assert rows_of(tmp_path / "figures23_quick_runs.csv") == []


def test_a_run_in_a_process_of_its_own_reports_its_memory_or_its_end():
    row, curve = figures23.in_child(job(dataset="diabetes", fold=0, kernel="iso", method="CHOL"), limit=60)
    assert row["status"] == "finished", row
    assert float(row["peak_mb"]) > 50
    assert curve[0]["step"] == "0"
    failed, nothing = figures23.in_child(job(dataset="diabetes", fold=99), limit=60)
    assert (failed["status"], nothing) == (figures23.FAILED, [])
    assert "folds 0 to 9" in failed["reason"]


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Return a directory in which the quick mode was run, tiny, as a user would."""
    directory = tmp_path_factory.mktemp("quick")
    command = [sys.executable, str(EXPERIMENTS / "figures23.py"), *TINY, "--budget", "0.3", "--out", str(directory)]
    environment = {name: value for name, value in os.environ.items() if name != "KERNELCG_DATA"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    return directory


def test_the_quick_mode_from_end_to_end(quick, tmp_path):
    runs = rows_of(quick / "figures23_quick_runs.csv")
    assert [row["method"] for row in runs] == list(figures23.METHODS)
    assert {row["status"] for row in runs} <= {"finished", "out of time"}
    assert all(row["machine"] and "torch" in row["versions"] and row["seed"] == "0" for row in runs)
    curves = rows_of(quick / "figures23_quick_curves.csv")
    assert all(float(row["training_seconds"]) <= 0.3 for row in curves)
    draw_figures23.main(["--quick", "--results", str(quick), "--out", str(tmp_path)])
    drawn = sorted(file.name for file in tmp_path.iterdir())
    assert drawn == ["figures23_quick_isotropic.png", "figures23_quick_products_isotropic.png"]


# the authors' curves


def test_the_authors_curves_are_read_with_their_flaws_left_out(tmp_path):
    file = tmp_path / "results.csv.gz"
    header = "dataset,kernel,metric,method,run,step_size,probes,predict_every,fold,step,seconds,value"
    lines = [
        "concrete,ARD,NEG_LLIK,PCG,main,1,4,10,1,0,3.5,33",
        "concrete,ARD,NEG_LLIK,PCG,main,0.5,4,10,1,0,3.5,99",
        "concrete,ARD,NEG_LLIK,CHOL,main,,,3,2,0,3.5,64",
        "concrete,ARD,NEG_LLIK,VAR,old,,,,1,0,3.5,99",
        "concrete,ARD,NEG_LLIK,CG,main,1,4,10,3,0,3.5,99",
        "spam,ARD,NEG_LLIK,CHOL,main,,,1,1,0,3.5,99",
        "spam,ARD,NEG_LLIK,VAR,main,,,,1,0,3.5,69",
        "spam,ARD,ERROR_RATE,CHOL,main,,,1,1,0,3.5,0.5",
    ]
    file.write_bytes(gzip.compress("\n".join([header, *lines, ""]).encode()))

    def last_values(dataset, value):
        panel = draw_figures23.Panel(dataset, "ARD", {}, 1.0, (), frozenset({"1", "2"}))
        found = draw_figures23.stored_curves(file, panel, value)
        return {name: [value[-1] for _, value in folds] for name, folds in found.items()}

    assert last_values("concrete", "nll") == {"PCG": [1.0], "CHOL-restarted": [2.0]}
    assert last_values("spambase", "nll") == {"VAR": [1.0]}
    assert last_values("spambase", "error") == {"CHOL-restarted": [0.5]}


def test_sizes_of_the_papers_folds():
    assert [draw_figures23.test_rows("concrete", fold) for fold in (1, 2)] == [33, 32]
    assert [draw_figures23.test_rows("powerplant", fold) for fold in (1, 3)] == [99, 98]
    assert draw_figures23.test_rows("protein", 1) == 215
