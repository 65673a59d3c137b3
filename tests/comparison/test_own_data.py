"""`compare` on data of one's own: what goes in, what comes out."""

import csv
import math
import subprocess
import sys

import numpy as np
import pytest

import kernelcg
from kernelcg.backends import dask as dask_backend
from kernelcg.backends.cluster import Cluster
from kernelcg.comparison import Comparison, plotting, table
from kernelcg.comparison.data import standardised
from kernelcg.comparison.harness import Evaluation, Run
from kernelcg.comparison.methods import METHODS
from kernelcg.events import EventKind
from kernelcg.kernels import RBF
from kernelcg.preconditioners import available

rng = np.random.default_rng(0)
X = rng.normal(size=(90, 2))
Y = np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=90)
LABELS = np.where(Y > 0, "yes", "no")


@pytest.fixture(scope="module")
def regression():
    return kernelcg.compare(X, Y, methods=["kernelcg", "PCG", "VAR"], budget=0.4, folds=2, points=4)


def test_regression(regression):
    assert (regression.task, regression.rows, regression.features) == ("regression", 72, 2)
    rows = {row["method"]: row for row in regression.table()}
    assert set(rows) == {"kernelcg", "PCG", "VAR"}
    assert math.isnan(rows["VAR"]["products"])
    assert rows["kernelcg"]["error"] < 0.5
    assert rows["kernelcg"]["status"] == "finished"
    assert regression.best == regression.table()[0]["method"]
    text = str(regression)
    assert all(word in text for word in ("kernelcg", "PCG", "RMSE", "nystrom", "72 training rows"))


def test_every_preconditioner_is_tried_on_the_same_system(regression):
    tried = {trial.preconditioner: trial for trial in regression.preconditioners}
    assert set(tried) == {"auto", "none", *available()}
    assert tried["none"].iterations > tried["nystrom"].iterations
    assert tried["none"].products >= tried["none"].iterations
    quickest = min((trial for trial in tried.values() if trial.converged), key=lambda trial: trial.seconds)
    assert regression.best_preconditioner == quickest.preconditioner


def test_tables_and_pictures(regression, tmp_path):
    regression.to_csv(tmp_path / "curves.csv")
    with (tmp_path / "curves.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == sum(len(run.curve) for runs in regression.runs.values() for run in runs)
    assert {row["split"] for row in rows} == {"0", "1"}
    pytest.importorskip("matplotlib").use("Agg")
    figure = regression.plot(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000
    assert len(figure.axes) == 4


def test_classification_of_words_with_a_kernel_of_ones_own():
    seen = []
    found = kernelcg.compare(
        X, LABELS, kernel=RBF(1.0, 4.0), methods=["kernelcg"], budget=5, points=2, callback=seen.append
    )
    plans = [event.payload for event in seen if event.kind is EventKind.PLAN]
    assert plans == [run.plan for run in found.runs["kernelcg"]]
    assert seen[0].kind is EventKind.PLAN
    ends = [event.payload for event in seen if event.kind is EventKind.METHOD]
    assert found.task == "classification"
    assert found.table()[0]["error"] < 0.3
    assert [str(one) for one in ends] == [f"kernelcg, split 1 of 1: {ends[0].status}, {ends[0].steps} steps"]
    assert seen[-1].kind is EventKind.END
    assert seen[-1].payload is found
    seconds = [event.seconds for event in seen]
    assert seconds == sorted(seconds)
    assert any(trial.converged for trial in found.preconditioners)


def test_a_file_and_a_frame_are_the_arrays(tmp_path):
    file = tmp_path / "data.csv"
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["a", "size", "b"])
        writer.writerows((repr(float(x[0])), repr(float(y)), repr(float(x[1]))) for x, y in zip(X, Y, strict=True))
    read = table(file, target="size")
    np.testing.assert_array_equal(read.X, X)
    np.testing.assert_array_equal(read.y, Y)
    pandas = pytest.importorskip("pandas")
    framed = table(pandas.read_csv(file), target="size")
    np.testing.assert_allclose(framed.X, X, rtol=1e-15)
    assert framed.task == "regression"


def test_a_file_with_words_as_target(tmp_path):
    file = tmp_path / "words.csv"
    file.write_text("x,kind\n" + "".join(f"{i},{'even' if i % 2 == 0 else 'odd'}\n" for i in range(30)))
    read = table(file, target="kind")
    assert read.classes == ("even", "odd")
    assert read.y[:3].tolist() == [0, 1, 0]


def test_what_task_is_guessed():
    assert table(X, (Y > 0).astype(int)).task == "classification"
    assert table(X, np.arange(90)).task == "regression"
    assert table(X, np.arange(90) // 30, task="classification").classes == (0, 1, 2)


def broken(values, at, by):
    copy = np.array(values)
    copy[at] = by
    return copy


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ((broken(X, (3, 1), np.nan), Y), {}, "X contains NaN"),
        ((X, broken(Y, 3, np.nan)), {}, "y contains NaN"),
        ((X[:1], Y[:1]), {}, "at least 20"),
        ((X[:15], Y[:15]), {}, "at least 20"),
        ((X, np.ones(90)), {}, "constant"),
        ((X, np.full(90, "a")), {}, "only one class"),
        ((X, LABELS), {"task": "regression"}, "words"),
        ((np.array([["red", "1"]] * 90), Y), {}, "could not convert"),
        ((X, Y[:50]), {}, "inconsistent"),
        ((X, np.stack([Y, Y], 1)), {}, "one column"),
        ((X,), {}, "y is missing"),
        ((X, Y), {"task": "ranking"}, "task must be"),
        ((X, Y), {"methods": ["magic"]}, "magic"),
        ((X, Y), {"methods": "magic"}, "not magic"),
        ((X, Y), {"budget": "60"}, "budget must be a positive number"),
        ((X, broken(Y.astype(object), 7, None)), {}, "nothing in row 7"),
        ((X, broken(LABELS.astype(object), 7, float("nan"))), {}, "nothing in row 7"),
        ((X, np.arange(90) % 3), {"task": "classification", "methods": ["FITC", "PCG"]}, "more than two classes"),
        ((X, Y), {"methods": []}, "some of kernelcg"),
        ((X, Y), {"budget": 0}, "budget"),
        ((X, Y), {"folds": 0}, "folds"),
        ((X, Y), {"test": 1.0}, "share"),
        ((X, Y), {"points": 1}, "points"),
        ((X, broken(LABELS.astype(object), 0, "rare")), {}, "rare"),
    ],
)
def test_bad_input_is_named(given, options, words):
    with pytest.raises(ValueError, match=words):
        kernelcg.compare(*given, **options)


def test_a_column_and_objects_are_what_they_hold():
    np.testing.assert_array_equal(table(X, Y[:, None]).y, Y)
    assert table(X, Y.astype(object)).task == "regression"
    assert table(X, LABELS.astype(object)).classes == ("no", "yes")


def test_a_column_that_is_constant_but_for_rounding_is_only_centred():
    values = np.array([[0.1], [0.1], [0.1 + 1e-17], [0.2]])
    assert standardised(values, np.arange(3))[3, 0] == pytest.approx(0.1)
    np.testing.assert_allclose(standardised(X, np.arange(50))[:50].std(0, ddof=1), 1)


def test_a_word_in_a_frame_is_named():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "colour": "red", "y": Y})
    with pytest.raises(ValueError, match="'colour' must hold numbers"):
        table(frame, target="y")


def test_files_without_a_target_in_some_row_or_without_inputs(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text("x,y\n" + "1,2\n" * 30 + "3,\n")
    with pytest.raises(ValueError, match="'y' is empty in row 32"):
        table(file, target="y")
    file.write_text("y\n" + "1\n2\n" * 30)
    with pytest.raises(ValueError, match="no column beside 'y'"):
        table(file, target="y")


def test_bad_files_are_named(tmp_path):
    file = tmp_path / "bad.csv"
    file.write_text("x,colour,y\n" + "1,red,2\n" * 30)
    with pytest.raises(ValueError, match="'colour' must hold numbers"):
        table(file, target="y")
    with pytest.raises(ValueError, match="no column 'z'"):
        table(file, target="z")
    with pytest.raises(ValueError, match="target"):
        table(file)
    with pytest.raises(TypeError, match="DataFrame"):
        table(X, target="y")


# when there is little to show


def test_methods_that_do_not_suit_are_listed_and_said_why():
    found = kernelcg.compare(
        X, np.arange(90) % 3, task="classification", methods=["FITC", "kernelcg"], budget=0.5, points=2
    )
    assert {row["method"]: row["status"] for row in found.table()}["FITC"] == "not for more than two classes"
    assert "not for more than two classes" in str(found)
    assert found.best == "kernelcg"


def test_a_comparison_without_a_result_can_be_looked_at(monkeypatch, tmp_path):
    monkeypatch.setattr("kernelcg.planning.expectations.MATRICES", 1e18)
    found = kernelcg.compare(X, Y, methods=["CHOL"], budget=0.2)
    assert found.best is None
    assert "does not fit" in str(found)
    pytest.importorskip("matplotlib").use("Agg")
    found.plot(tmp_path / "empty.png")


def test_methods_without_products_can_be_drawn():
    pytest.importorskip("matplotlib").use("Agg")
    figure = kernelcg.compare(X, Y, methods="VAR", budget=0.2, points=2).plot()
    assert [text.get_text() for text in figure.axes[1].texts] == ["nothing to show"]


def test_a_point_that_comes_after_a_later_one_is_left_out():
    where, value = plotting.curve_of([(1.6, 9.0), (1.3, 8.0), (0.5, 7.0), (0.7, math.nan), (2.0, 1.0)])
    assert (where.tolist(), value.tolist()) == ([0.5, 2.0], [7.0, 1.0])
    assert plotting.curve_of([(0.0, 1.0)]) is None


# what is best


def curve(*points):
    return tuple(Evaluation(i, at, at, 10 * at, nll, nll) for i, (at, nll) in enumerate(points))


def run_of(name, *points):
    return Run(METHODS[name], "finished", "", (), curve(*points), None)


def test_the_best_has_the_lowest_nll_and_among_equals_came_first():
    runs = {
        "CHOL": (run_of("CHOL", (1, 2.0), (8, 0.500)),),
        "PCG": (run_of("PCG", (1, 2.0), (4, 0.505), (9, 0.504)),),
        "CG": (run_of("CG", (1, 0.6), (2, 0.6)),),
    }
    found = Comparison("regression", 10, 1, 10.0, runs)
    assert found.best == "PCG"
    assert [row["method"] for row in found.table()] == ["PCG", "CHOL", "CG"]
    assert [row["to_best"] for row in found.table()][:2] == [4.0, 8.0]
    assert math.isnan(found.table()[2]["to_best"])


def test_folds_are_averaged_with_their_last_value_carried_forward():
    short, long = (np.array([1.0, 2.0]), np.array([5.0, 3.0])), (np.array([1.5, 4.0]), np.array([4.0, 1.0]))
    where, mean = plotting.averaged([short, long])
    assert where.tolist() == [1.5, 2.0, 4.0]
    assert mean.tolist() == [4.5, 3.5, 2.0]


def test_the_core_and_the_comparison_need_no_matplotlib_until_a_picture_is_drawn():
    code = (
        "import sys; sys.modules.update({'matplotlib': None, 'pandas': None, 'rich': None});"
        "import kernelcg; kernelcg.compare; from kernelcg.comparison import plotting\n"
        "try: plotting.pyplot()\n"
        "except ImportError as error: print(error)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'kernelcg[plot]'" in told


def test_on_a_cluster(client, monkeypatch):
    """Products are those of the workers; the results are the same but for rounding and the time that is left."""
    monkeypatch.setattr(dask_backend, "LEAST_BLOCK", 40)
    monkeypatch.setattr(dask_backend, "BLOCK_GROWTH", 1.0)
    sent = []
    monkeypatch.setattr(
        Cluster,
        "map",
        lambda self, task, *arguments, map=Cluster.map, **same: (
            sent.append(task.__name__) or map(self, task, *arguments, **same)
        ),
    )
    found = kernelcg.compare(X, Y, methods=["PCG"], budget=2, points=2, cluster=client, preconditioners=False)
    assert "product_of_tile" in sent
    assert found.table()[0]["error"] < 0.5
    with pytest.raises(ValueError, match="cluster must be None"):
        kernelcg.compare(X, Y, cluster=3)
