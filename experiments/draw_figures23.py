"""Draw figures 2 and 3 from results/figures23_runs.csv and figures23_curves.csv into figures/. Nothing here computes.

Columns are data sets; above the error (RMSE in units of the training sd of y, or share of wrong labels), below the mean
negative log-likelihood of a test row. The mean over folds is taken on a common axis, each fold's last value carried
forward. With --stored the authors' curves of arXiv version 1 are drawn faintly, into files of their own.
"""

import argparse
import csv
import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from splits import BUNDLED, PAPER, RUN_KEY, SETS

from kernelcg.comparison.methods import METHODS
from kernelcg.comparison.plotting import STYLES, Curve, averaged, curve_of, draw_curves
from kernelcg.comparison.tasks import KERNELS

HERE = Path(__file__).parent
LAYOUT = {"figure2": ("spambase", "eeg", "powerplant", "protein"), "figure3": ("credit", "concrete")}
"""Data sets of the paper's figures, in their order."""

SUFFIX = {"ARD": "", "iso": "_isotropic"}
KERNEL_WORDS = {"ARD": "one lengthscale per feature (ARD)", "iso": "one lengthscale (isotropic)"}
VALUES = ("error", "nll")
TITLE_WIDTH = 32
AXES = {"seconds": "seconds: training + conditioning", "products": "columns multiplied with K"}
STORED_NAMES = {"spambase": "spam"}
STORED_ROWS = {"concrete": 1030, "powerplant": 9568, "protein": 45730, "credit": 1000, "spambase": 4601}
WARNING = (
    "Faint: the authors' stored runs (arXiv v1), on another machine (16 cores) and from other initial values: "
    "their shapes may be compared, their times may not."
)
Curves = dict[str, list[Curve]]


@dataclass(frozen=True)
class Panel:
    """One data set with one kernel: curves by method for each value, the time that training had, runs on a GPU."""

    dataset: str
    kernel: str
    curves: Mapping[str, Curves]
    budget: float
    on_gpu: tuple[str, ...]
    folds: frozenset[str]

    @property
    def title(self) -> str:
        """Return the name of the data set, and what was run on a GPU."""
        drawn = {name for curves in self.curves.values() for name in curves}
        there = [name for name in self.on_gpu if name in drawn]
        which = "on a GPU" if set(there) == drawn else f"on a GPU: {', '.join(there)}"
        return SETS[self.dataset].title + (f"\n{fill(f'({which})', TITLE_WIDTH)}" if there else "")


def rows_of(file: Path) -> list[dict[str, str]]:
    """Return the rows of a table, compressed or not."""
    raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return list(csv.DictReader(raw.decode("utf-8").splitlines()))


def panels(runs: list[dict[str, str]], points: list[dict[str, str]], where: str) -> dict[tuple[str, str], Panel]:
    """Return what there is to draw, by data set and kernel, against "seconds" or "products".

    Of a run on a CPU and one on a GPU the former is drawn; means are over the folds that all methods have.
    """
    curves: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for point in points:
        curves.setdefault(tuple(point[name] for name in RUN_KEY), []).append(point)
    on_cpu = {key[:3] for key in curves if key[4] == "cpu"}
    drawn = {key: own for key, own in curves.items() if key[4] == "cpu" or key[:3] not in on_cpu}
    budgets = {tuple(run[name] for name in RUN_KEY): float(run["budget"]) for run in runs}
    found = {}
    for dataset, kernel in {key[:2]: None for key in drawn}:
        own = {key: rows for key, rows in drawn.items() if key[:2] == (dataset, kernel)}
        folds = common_folds(own)
        own = {key: rows for key, rows in own.items() if key[3] in folds}
        gpu = tuple(name for name in METHODS if any(key[2] == name and key[4] != "cpu" for key in own))
        by_method = {value: curves_by_method(own, where, value) for value in VALUES}
        budget = max((budgets[key] for key in own if key in budgets), default=0.0)
        found[dataset, kernel] = Panel(dataset, kernel, by_method, budget, gpu, folds)
    return found


def common_folds(runs: Iterable[tuple[str, ...]]) -> frozenset[str]:
    """Return the folds that every method has, or all of them if there is none."""
    by_method: dict[str, set[str]] = {}
    for key in runs:
        by_method.setdefault(key[2], set()).add(key[3])
    return frozenset(set.intersection(*by_method.values()) or set.union(*by_method.values()))


def curves_by_method(runs: Mapping[tuple[str, ...], list[dict[str, str]]], where: str, value: str) -> Curves:
    """Return the usable curves of these runs."""
    found: Curves = {}
    for key, own in runs.items():
        curve = curve_of((float(point[where]), float(point[value])) for point in own)
        if curve is not None:
            found.setdefault(key[2], []).append(curve)
    return found


# the authors' curves


def stored_curves(file: Path, panel: Panel, value: str) -> Curves:
    """Return the authors' runs by method on the same folds; NLL a test row, and none where it is known to be wrong."""
    name, stored_kernel = STORED_NAMES.get(panel.dataset, panel.dataset), "RBF" if panel.kernel == "iso" else "ARD"
    any_fold = not SETS[panel.dataset].verified
    metrics = ("NEG_LLIK",) if value == "nll" else ("RMSE", "ERROR_RATE")
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows_of(file):
        same = (row["dataset"], row["kernel"], row["run"]) == (name, stored_kernel, "main") and row["metric"] in metrics
        wrong = value == "nll" and name in ("spam", "credit") and row["method"] in ("PCG", "CG", "CHOL")
        other = row["step_size"] not in ("", "1") or (name == "protein" and row["predict_every"] == "3")
        if same and not wrong and not other and (any_fold or row["fold"] in panel.folds):
            rows = test_rows(panel.dataset, int(row["fold"])) if value == "nll" else 1
            point = float(row["seconds"]), float(row["value"]) / rows
            found.setdefault((row["method"], row["fold"]), []).append(point)
    curves: Curves = {}
    for (method, _), points in found.items():
        curve = curve_of(points)
        if curve is not None:
            curves.setdefault("CHOL-restarted" if method == "CHOL" else method, []).append(curve)
    return curves


def test_rows(dataset: str, fold: int) -> int:
    """Return the size of one of the paper's ⌊√n⌋ blocks."""
    n = STORED_ROWS[dataset]
    blocks = np.floor(np.linspace(1, int(np.sqrt(n)) + 1 - 1e-6, n))
    return int((blocks == fold).sum())


# drawing


def draw(figure_panels: Sequence[Panel], where: str, title: str, stored: Path | None = None) -> Figure:
    """Draw the data sets side by side, error above and NLL below."""
    count = len(figure_panels)
    figure, grid = plt.subplots(2, count, figsize=(max(3.1 * count, 6.2), 6.4), squeeze=False, layout="constrained")
    for column, panel in enumerate(figure_panels):
        one = SETS[panel.dataset]
        for axes, value in zip(grid[:, column], VALUES, strict=True):
            draw_curves(axes, panel.curves[value], until=panel.budget if where == "seconds" else None)
            if stored is not None:
                overlay(axes, stored_curves(stored, panel, value))
            axes.tick_params(labelsize=8)
        grid[0, column].set_title(panel.title, fontsize=11)
        grid[0, column].set_ylabel("RMSE / sd of y" if one.task == "regression" else "error rate", fontsize=9)
        grid[1, column].set_ylabel("NLL, nats a test row", fontsize=9)
        grid[1, column].set_xlabel(AXES[where], fontsize=9)
    methods = [name for name in METHODS if any(name in panel.curves["error"] for panel in figure_panels)]
    figure.legend(handles=[key(name) for name in methods], loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(title + (f"\n{fill(WARNING, 34 * max(count, 2))}" if stored else ""), fontsize=10)
    return figure


def key(name: str) -> Line2D:
    """Return the entry of a method in the legend."""
    style = STYLES[name]
    return Line2D([], [], color=style.colour, linestyle=style.dashes, linewidth=style.width, label=name)


def overlay(axes: Axes, curves: Curves) -> None:
    """Draw the authors' curves, in the colours of the methods, faintly."""
    for method, folds in curves.items():
        where, value = averaged(folds)
        style = STYLES[method]
        axes.step(where, value, where="post", color=style.colour, linestyle=style.dashes, linewidth=1, alpha=0.35)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, value[-1]), max(high, value[-1]))


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results", help="directory of the tables")
    parser.add_argument("--out", type=Path, default=HERE / "figures", help="directory of the pictures")
    parser.add_argument("--stored", type=Path, help="the authors' results.csv.gz, drawn into *_with_stored.png")
    parser.add_argument("--quick", action="store_true", help="draw what figures23.py --quick made")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> None:
    """Draw everything there are runs for."""
    options = arguments(given)
    name = "figures23_quick" if options.quick else "figures23"
    runs, points = (rows_of(options.results / f"{name}_{kind}.csv") for kind in ("runs", "curves"))
    options.out.mkdir(parents=True, exist_ok=True)
    layout = {"figures23_quick": BUNDLED} if options.quick else LAYOUT
    everything = {"figures23": PAPER} if not options.quick else layout
    by_time, by_products = panels(runs, points, "seconds"), panels(runs, points, "products")
    for kernel in KERNELS:
        for figure, names in layout.items():
            save(by_time, "seconds", figure, names, kernel, options.out, None)
            if options.stored:
                save(by_time, "seconds", figure, names, kernel, options.out, options.stored)
        for figure, names in everything.items():
            save(by_products, "products", f"{figure}_products", names, kernel, options.out, None)


def save(
    found: Mapping[tuple[str, str], Panel],
    where: str,
    name: str,
    names: Sequence[str],
    kernel: str,
    directory: Path,
    stored: Path | None,
) -> None:
    """Draw one file, if there is anything in it."""
    own = [found[dataset, kernel] for dataset in names if (dataset, kernel) in found]
    own = [panel for panel in own if panel.curves["error"]]
    if not own:
        return
    file = directory / f"{name}{SUFFIX[kernel]}{'_with_stored' if stored else ''}.png"
    figure = draw(own, where, f"RBF kernel, {KERNEL_WORDS[kernel]}", stored)
    figure.savefig(file, dpi=150)
    plt.close(figure)
    print(file)


if __name__ == "__main__":
    main()
