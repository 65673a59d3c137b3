"""Figure 1 as an experiment: the protocol's numbers, the table, the caps, the drawing, the comparison."""

import csv
import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kernelcg.datasets import Dataset

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import compare_with_stored
import figure1
import protocol
from ledger import Ledger

draw_figure1 = pytest.importorskip("draw_figure1", reason="matplotlib is not installed")

CONCRETE_POINTS = (
    564, 135, 732, 311, 966, 198, 784, 170, 995, 899, 110, 668, 224, 526, 875, 159,
    223, 75, 65, 513, 167, 132, 719, 300, 349, 347, 866, 280, 667, 963, 588, 291,
)  # fmt: skip
SIZES = {"concrete": (1030, 8, 32), "powerplant": (9568, 4, 97), "protein": (45730, 9, 213)}


# the protocol


def test_the_points_are_those_of_the_authors():
    assert protocol.inducing_points(1030, 32) == CONCRETE_POINTS


@pytest.mark.parametrize(("n", "d", "m"), SIZES.values())
def test_every_recipe_has_the_size_of_the_paper(n, d, m):
    options = {method.name: method.options(n, d) for method in protocol.PAPER}
    points = options["nystrom"]["points"]
    assert len(set(points)) == len(points) == m
    assert all(0 <= point < n for point in points)
    assert options["fitc"]["points"] == options["pitc"]["points"] == points
    assert -(-n // options["block_jacobi"]["block_size"]) == m
    assert -(-n // options["pitc"]["block_size"]) == m
    assert options["spectral"]["frequencies"] == options["randomized_svd"]["rank"] == m


def test_the_grids_of_ski_are_those_of_the_authors():
    ski = protocol.METHODS["ski"]
    assert [ski.options(*SIZES[name][:2])["grid"] for name in ("concrete", "powerplant")] == [4, 31]


def test_which_methods_run_where():
    assert len(protocol.PAPER) == 8
    assert [method.name for method in protocol.PAPER if "protein" in method.excluded] == ["regularized", "ski"]
    assert protocol.CAPS == {"concrete": 5000, "powerplant": 5000, "protein": 2000}
    assert len(protocol.METHODS) == 1 + len(protocol.PAPER) + len(protocol.OURS)


def test_settings_are_short_words():
    assert protocol.METHODS["nystrom"].settings(1030, 8) == "points=32@seed48 jitter=1e-06"
    assert protocol.METHODS["cg"].settings(1030, 8) == ""


def test_standardised_columns_have_population_deviation_one():
    values = figure1.standardised(torch.tensor([[1.0, 5.0], [2.0, 5.5], [4.0, 9.0]], dtype=torch.float64))
    np.testing.assert_allclose(values.mean(0), 0, atol=1e-15)
    np.testing.assert_allclose((values**2).mean(0), 1)


# the table


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "deep" / "table.csv", ["place", "method", "count"], ["place", "method"])


def reopened(ledger):
    return Ledger(ledger.file, ledger.columns, ledger.key)


def test_rows_are_on_disk_at_once_and_found_again(ledger):
    ledger.put({"place": 1, "method": "a", "count": 10})
    ledger.put({"place": 1, "method": "b, c", "count": 20})
    again = reopened(ledger)
    assert again.find(place=1, method="b, c")["count"] == "20"
    assert again.find(place=2, method="a") is None
    assert len(list(again)) == 2


def test_a_row_with_the_same_key_replaces_the_old_one(ledger):
    ledger.put({"place": 1, "method": "a", "count": 10})
    ledger.put({"place": 1, "method": "a", "count": 11})
    assert [row["count"] for row in reopened(ledger)] == ["11"]


def test_a_line_cut_short_is_as_if_it_were_not_there(ledger):
    ledger.put({"place": 1, "method": "a", "count": 10})
    with ledger.file.open("a") as stream:
        stream.write("2,a,1")
    again = reopened(ledger)
    assert len(again.rows) == 1
    again.put({"place": 3, "method": "a", "count": 5})
    assert sorted(row["place"] for row in reopened(again)) == ["1", "3"]


def test_other_columns_are_refused(ledger):
    ledger.put({"place": 1, "method": "a", "count": 10})
    with pytest.raises(ValueError, match="columns"):
        Ledger(ledger.file, ["place", "count"], ["place"])


def test_sorting_follows_the_given_order(ledger):
    for place, method in ((2, "a"), (1, "z"), (1, "a"), (1, "b")):
        ledger.put({"place": place, "method": method, "count": 0})
    ledger.sort({"place": ["1", "2"], "method": ["b", "a"]})
    assert [(row["place"], row["method"]) for row in reopened(ledger)] == [
        ("1", "b"),
        ("1", "a"),
        ("1", "z"),
        ("2", "a"),
    ]


# the runs


@pytest.fixture
def small(monkeypatch):
    """Sixty rows in place of Concrete."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    data = Dataset("concrete", X, np.sin(3 * X).sum(1) + 5, "regression", "small", "here")
    monkeypatch.setattr(figure1.datasets, "load", lambda name: data)
    return data


def run_small(tmp_path, *words):
    out = tmp_path / "table.csv"
    code = figure1.main(["--sets", "concrete", "--lengthscales", "0", "--out", str(out), *words])
    with out.open(newline="") as stream:
        return code, {(row["method"], row["log10_noise"]): row for row in csv.DictReader(stream)}


def test_a_cell_solves_the_system_of_the_protocol(small, tmp_path):
    code, rows = run_small(tmp_path, "--recipes", "nystrom", "--noises", "-2")
    assert code == 0
    assert set(rows) == {("cg", "-2"), ("nystrom", "-2")}
    for row in rows.values():
        assert (row["converged"], row["status"], row["n"], row["d"]) == ("1", "CONVERGED", "60", "2")
        assert float(row["true_relative_residual"]) <= 1e-5  # ‖y‖² = n
        assert int(row["products"]) > int(row["iterations"])
        assert int(row["total_products"]) == int(row["products"])
    X = (small.X - small.X.mean(0)) / small.X.std(0)
    y = (small.y - small.y.mean()) / small.y.std()
    K = np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(2)) + (1e-2 + 1e-9) * np.eye(60)
    steps = plain_cg_steps(K, y)  # 42 to 45, according to the last bits of K
    assert abs(int(rows["cg", "-2"]["iterations"]) - steps) <= 3


def plain_cg_steps(A, y):
    """Steps until ‖r‖² < 1e-10 n, by textbook CG."""
    r, d, steps = y.copy(), y.copy(), 0
    while r @ r >= 1e-10 * len(y):
        alpha = (r @ r) / (d @ A @ d)
        r_new = r - alpha * (A @ d)
        d = r_new + (r_new @ r_new) / (r @ r) * d
        r, steps = r_new, steps + 1
    return steps


def test_finished_cells_are_skipped_and_changed_settings_are_not(small, tmp_path, monkeypatch):
    done = []
    run = figure1.run

    def counted(method, *rest):
        done.append(method.name)
        return run(method, *rest)

    monkeypatch.setattr(figure1, "run", counted)
    run_small(tmp_path, "--recipes", "nystrom", "--noises", "-2")
    run_small(tmp_path, "--recipes", "nystrom", "--noises", "-2")
    assert done == ["cg", "nystrom"]
    run_small(tmp_path, "--recipes", "nystrom", "--noises", "-4", "-2")
    assert done[2:] == ["cg", "nystrom"]
    other = protocol.Method("nystrom", "Nyström", "nystrom", lambda n, d: {"rank": 5})
    monkeypatch.setitem(figure1.METHODS, "nystrom", other)
    _, rows = run_small(tmp_path, "--recipes", "nystrom", "--noises", "-2")
    assert done[4:] == ["nystrom"]
    assert rows["nystrom", "-2"]["settings"] == "rank=5"
    run_small(tmp_path, "--recipes", "cg", "--noises", "-2", "--again")
    assert done[5:] == ["cg"]


def test_setup_and_inner_products_count(small, tmp_path):
    _, rows = run_small(tmp_path, "--recipes", "randomized_svd", "regularized", "--noises", "-2")
    svd, regularised = rows["randomized_svd", "-2"], rows["regularized", "-2"]
    assert int(svd["setup_products"]) >= 7
    assert int(regularised["inner_products"]) > int(regularised["iterations"])
    for row in (svd, regularised):
        parts = [int(row[part]) for part in ("products", "inner_products", "setup_products")]
        assert int(row["total_products"]) == sum(parts)


@pytest.mark.parametrize("method", ["cg", "nystrom", "randomized_svd", "regularized"])
def test_a_run_beyond_the_cap_has_not_converged(small, tmp_path, monkeypatch, method):
    _, free = run_small(tmp_path, "--recipes", method, "--noises", "-4")
    needed = int(free[method, "-4"]["total_products"])
    monkeypatch.setitem(figure1.CAPS, "concrete", needed)
    _, just = run_small(tmp_path, "--recipes", method, "--noises", "-4", "--again")
    assert just[method, "-4"]["converged"] == "1"
    monkeypatch.setitem(figure1.CAPS, "concrete", needed - 1)
    _, capped = run_small(tmp_path, "--recipes", method, "--noises", "-4", "--again")
    assert (capped[method, "-4"]["status"], capped[method, "-4"]["converged"]) == (figure1.CAPPED, "0")


def test_a_recipe_that_fails_costs_its_own_cell_only(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(figure1.METHODS, "pitc", protocol.Method("pitc", "PITC", "no_such_recipe"))
    code, rows = run_small(tmp_path, "--recipes", "pitc", "fitc", "--noises", "-2")
    assert code == 1
    assert set(rows) == {("cg", "-2"), ("fitc", "-2")}
    assert "no_such_recipe" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no_such_recipe"):
        run_small(tmp_path, "--recipes", "pitc", "--noises", "-2", "--strict")


def test_quick_has_its_own_table():
    options = figure1.arguments(["--quick"])
    assert (options.sets, options.out.name) == (["concrete"], "figure1_quick.csv")
    assert figure1.arguments([]).out.name == "figure1.csv"


# the drawing


def result(converged=True, total=100, solver="pcg", **others):
    values = {"dataset": "concrete", "n": 1030, "d": 8, "log10_lengthscale": 0, "log10_noise": -2, "method": "cg"}
    values |= {"converged": int(converged), "total_products": total, "iterations": total - 1, "solver": solver} | others
    return {name: str(value) for name, value in values.items()}


def test_ratios_exist_only_where_both_runs_converged():
    def mark(pcg, cg):
        return draw_figure1.ratio_mark(pcg, cg, "products")

    cg, failed = result(total=1000), result(converged=False, total=5000)
    gain, loss, even = mark(result(total=10), cg), mark(result(total=2000), cg), mark(result(total=1010), cg)
    assert (gain.text, gain.value, gain.hatch) == ("−2.0", -2.0, "")
    assert (loss.text, loss.hatch) == ("+0.3", draw_figure1.LOSS)
    assert (even.text, even.hatch) == ("0", "")
    assert mark(failed, cg) == mark(failed, failed) == draw_figure1.FAILS
    alone = mark(result(total=77), failed)
    assert (alone.text, alone.value, alone.hatch) == ("77", None, draw_figure1.ALONE)
    assert mark(result(solver="direct"), cg) == draw_figure1.DIRECT
    assert mark(None, cg) == mark(cg, None) == draw_figure1.NOT_RUN


def test_steps_can_be_compared_instead():
    pcg, cg = result(total=500, iterations=10), result(total=1000, iterations=100)
    assert draw_figure1.ratio_mark(pcg, cg, "steps").value == pytest.approx(-1)


def test_the_best_of_several_is_the_cheapest_that_converged():
    cell = (0, -2)
    grids = {
        ("concrete", "pitc"): {cell: result(total=50)},
        ("concrete", "fitc"): {cell: result(total=40)},
        ("concrete", "nystrom"): {cell: result(converged=False, total=10)},
    }
    assert draw_figure1.best(grids, "concrete", protocol.PAPER, "products")[cell]["total_products"] == "40"


def test_drawing_writes_both_figures(tmp_path):
    rows = [
        result(method=method, log10_lengthscale=lengthscale, log10_noise=noise, converged=noise > -6, total=50 + number)
        for number, method in enumerate(("cg", "nystrom", "fitc", "vecchia_30", "auto"))
        for lengthscale in (-3, 0)
        for noise in protocol.NOISES
    ]
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    draw_figure1.main(["--results", str(table), "--out", str(tmp_path / "figures"), "--svg", "--dpi", "40"])
    for name in ("figure1", "figure1_ours"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "figures" / f"{name}.svg").read_text(encoding="utf-8")


# the comparison with the stored counts


@pytest.mark.parametrize(
    ("ours", "stored", "recomputed", "expected"),
    [
        (100, 100, None, compare_with_stored.AGREES),
        (100, 129, None, compare_with_stored.AGREES),
        (100, 131, None, compare_with_stored.OFF),
        (0, 1, None, compare_with_stored.AGREES),
        (190, 671, 190, compare_with_stored.RECOMPUTED),
        (190, 671, 500, compare_with_stored.OFF),
        (4000, 10001, None, compare_with_stored.STORED_CAPPED),
        (None, 15001, None, compare_with_stored.BOTH_CAPPED),
        (None, 300, None, compare_with_stored.OURS_CAPPED),
    ],
)
def test_verdicts(ours, stored, recomputed, expected):
    assert compare_with_stored.verdict(ours, stored, recomputed, 5000) == expected


def test_a_capped_run_says_nothing_about_outer_steps_alone():
    assert compare_with_stored.verdict(None, 300, None, 5000, outer_only=True) == compare_with_stored.OUTER_ONLY
    assert compare_with_stored.verdict(300, 300, None, 5000, outer_only=True) == compare_with_stored.AGREES


def test_counts_are_made_as_the_authors_made_them():
    row = result(iterations=10, inner_products=70)
    counts = {name: compare_with_stored.paper_count(row, name) for name in ("none", "SKI", "SKI_inner", "Regularized")}
    assert counts == {"none": 9, "SKI": 10, "SKI_inner": 60, "Regularized": 60}
    assert compare_with_stored.paper_count(result(converged=False), "none") is None


def test_the_comparison_is_written_and_summarised(tmp_path, capsys):
    stored, results, out = tmp_path / "stored.csv.gz", tmp_path / "results.csv", tmp_path / "out.csv"
    header = "dataset,preconditioner,log10_lengthscale,log10_noise,pcg_iterations,recomputed_iterations\n"
    stored.write_bytes(gzip.compress((header + "concrete,none,0,-2,50,99\nprotein,PITC,0,-2,7,\n").encode()))
    row = result(total=101, inner_products=0)
    results.write_text(",".join(row) + "\n" + ",".join(row.values()) + "\n")
    compare_with_stored.main(["--stored", str(stored), "--results", str(results), "--out", str(out)])
    (line,) = csv.DictReader(out.read_text().splitlines())
    assert (line["ours"], line["ratio"], line["ratio_to_recomputed"]) == ("99", "1.980", "1.000")
    assert line["verdict"] == compare_with_stored.RECOMPUTED
    assert "1 cells" in capsys.readouterr().out
