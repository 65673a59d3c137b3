"""Draw figure 1 from results/figure1.csv: figures/figure1.png (the paper's recipes) and figures/figure1_ours.png.

On top the iterations of CG, below for every recipe log₁₀ of its products over those of CG, set-up and inner solves
included: negative (blue) is a gain, positive (red, hatched) a loss. Nothing here computes; see figure1.py.
"""

import argparse
import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpecFromSubplotSpec, SubplotSpec
from matplotlib.patches import Rectangle
from protocol import CAPS, CG, LENGTHSCALES, NOISES, OURS, PAPER, TITLES, Method

HERE = Path(__file__).parent
ITERATIONS = LinearSegmentedColormap.from_list("iterations", ["#fffbe0", "#fdd07a", "#f08a3c", "#b8321f"])
RATIO = LinearSegmentedColormap.from_list(
    "ratio", ["#08306b", "#2f74b5", "#9cc6e3", "#f7f7f5", "#f6b99b", "#d9533f", "#8c0d25"]
)
ITERATION_RANGE, RATIO_RANGE = Normalize(0, 4), Normalize(-2, 2)
TOP, BOTTOM = 0.95, 0.82
"""Margins of the panels in inches."""

EVEN = 0.05
"""Ratios closer to 1 than 10^±0.05 are neither gain nor loss."""

Row = Mapping[str, str]
Cell = tuple[int, int]
Grid = dict[Cell, Row]
Grids = dict[tuple[str, str], Grid]


@dataclass(frozen=True)
class Mark:
    """What is shown in one cell."""

    text: str = "·"
    value: float | None = None
    hatch: str = ""


LOSS, CAPPED, ALONE = "////", "xxxx", "...."
"""Hatches: worse than CG; not within the cap; within it where CG is not."""

SHADES = {LOSS: "#555555", CAPPED: "#bbbbbb", ALONE: "#5c93c4"}
NOT_RUN = Mark()
FAILS = Mark("×", hatch=CAPPED)
DIRECT = Mark("D", hatch=ALONE)


def read(file: Path) -> Grids:
    """Return the rows of the table by data set and method, then by lengthscale and noise."""
    grids: Grids = {}
    with file.open(newline="", encoding="utf-8") as stream:
        for row in csv.DictReader(stream):
            cell = int(row["log10_lengthscale"]), int(row["log10_noise"])
            grids.setdefault((row["dataset"], row["method"]), {})[cell] = row
    return grids


def has_converged(row: Row) -> bool:
    """Say whether the run reached its tolerance within the cap."""
    return row["converged"] == "1"


def cost(row: Row, count: str) -> int:
    """Return what is compared: all products of a run, or its steps alone as the paper mostly did."""
    return max(int(row["total_products" if count == "products" else "iterations"]), 1)


def ratio_mark(pcg: Row | None, cg: Row | None, count: str) -> Mark:
    """Return log₁₀ of the ratio of costs; a capped run has none and is marked instead."""
    if pcg is None or cg is None:
        return NOT_RUN
    if not has_converged(pcg):
        return FAILS
    if pcg["solver"] == "direct":
        return DIRECT
    if not has_converged(cg):
        return Mark(f"{cost(pcg, count)}", hatch=ALONE)
    value = math.log10(cost(pcg, count) / cost(cg, count))
    text = f"{value:+.1f}".replace("-", "−") if abs(value) >= EVEN else "0"
    return Mark(text, value, LOSS if value >= EVEN else "")


def iterations_mark(cg: Row | None) -> Mark:
    """Return the number of steps of CG."""
    if cg is None:
        return NOT_RUN
    if not has_converged(cg):
        return FAILS
    steps = int(cg["iterations"])
    return Mark(f"{steps}", math.log10(max(steps, 1)))


def best(grids: Grids, dataset: str, methods: Sequence[Method], count: str) -> Grid:
    """Return, cell by cell, the cheapest converged run of these methods, or one that failed if all did."""
    found: Grid = {}
    for method in methods:
        for cell, row in grids.get((dataset, method.name), {}).items():
            held = found.get(cell)
            if held is None or (has_converged(row), -cost(row, count)) > (has_converged(held), -cost(held, count)):
                found[cell] = row
    return found


def draw_panel(axes: Axes, title: str, marks: Mapping[Cell, Mark], colours: Colormap, norm: Normalize) -> None:
    """Draw one grid of cells, lengthscale to the right and noise upwards."""
    for (lengthscale, noise), mark in marks.items():
        corner = LENGTHSCALES.index(lengthscale), len(NOISES) - 1 - NOISES.index(noise)
        draw_cell(axes, corner, mark, "white" if mark.value is None else to_hex(colours(norm(mark.value))))
    axes.set_xlim(0, len(LENGTHSCALES))
    axes.set_ylim(0, len(NOISES))
    axes.set_xticks(
        [place + 0.5 for place in range(len(LENGTHSCALES))], labels=[minus(value) for value in LENGTHSCALES]
    )
    axes.set_yticks([place + 0.5 for place in range(len(NOISES))], labels=[minus(value) for value in NOISES[::-1]])
    axes.tick_params(length=0, labelsize=7, pad=2)
    axes.set_title(title, fontsize=8.5, pad=3)


def draw_cell(axes: Axes, corner: tuple[float, float], mark: Mark, colour: str) -> None:
    """Draw a coloured square with its hatch and its number, the number on a clear ground."""
    is_dark = sum(weight * part for weight, part in zip((0.30, 0.59, 0.11), to_rgb(colour), strict=True)) < 0.5
    axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="none"))
    if mark.hatch:
        shade = "#ffffff" if is_dark else SHADES[mark.hatch]
        alpha = 0.5 if mark.hatch == LOSS else 1.0
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch=mark.hatch, edgecolor=shade, linewidth=0, alpha=alpha))
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="#888888", linewidth=0.5))
    axes.text(
        corner[0] + 0.5,
        corner[1] + 0.48,
        mark.text,
        ha="center",
        va="center_baseline",
        fontsize=7,
        color="white" if is_dark else "black",
        bbox={"boxstyle": "round,pad=0.12", "facecolor": colour, "edgecolor": "none"} if mark.hatch else None,
    )


def minus(value: int) -> str:
    """Return a number with a real minus sign."""
    return str(value).replace("-", "−")


def draw_absence(axes: Axes, title: str, words: str) -> None:
    """Draw a panel for what was not run."""
    axes.set_title(title, fontsize=8.5, pad=3, color="#777777")
    axes.text(0.5, 0.5, words, ha="center", va="center", fontsize=7.5, color="#777777", transform=axes.transAxes)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#cccccc")


@dataclass(frozen=True)
class Page:
    """Which panels a figure shows, and what is compared in them."""

    title: str
    methods: tuple[Method, ...]
    with_best: bool
    count: str

    @property
    def rows(self) -> int:
        """Return the number of rows of panels below the top one."""
        return -(-(len(self.methods) + self.with_best) // 2)


def draw_set(figure: Figure, place: SubplotSpec, page: Page, grids: Grids, dataset: str, leftmost: bool) -> None:
    """Draw the panels of one data set: CG on top, two recipes in each row below."""
    cg = grids.get((dataset, CG.name), {})
    cells = [(lengthscale, noise) for lengthscale in LENGTHSCALES for noise in NOISES]
    inside = GridSpecFromSubplotSpec(
        page.rows + 1, 4, place, hspace=0.42, wspace=0.22, height_ratios=[1.25] + [1] * page.rows
    )
    top = figure.add_subplot(inside[0, :])
    example = next(iter(cg.values()), None)
    size = f", n = {int(example['n']):,}, d = {example['d']}" if example else ""
    top.text(0.5, 1.2, f"{TITLES[dataset]}{size}", transform=top.transAxes, ha="center", fontsize=11, weight="bold")
    draw_panel(
        top,
        "CG: steps to convergence",
        {cell: iterations_mark(cg.get(cell)) for cell in cells},
        ITERATIONS,
        ITERATION_RANGE,
    )
    panels: list[tuple[str, Grid | None]] = [
        (method.title, None if dataset in method.excluded else grids.get((dataset, method.name), {}))
        for method in page.methods
    ]
    if page.with_best:
        panels.insert(0, ("best of the paper’s eight", best(grids, dataset, PAPER, page.count)))
    for number, (title, grid) in enumerate(panels):
        row, column = divmod(number, 2)
        axes = figure.add_subplot(inside[row + 1, 2 * column : 2 * column + 2])
        if grid is None:
            draw_absence(axes, title, "not run,\nas in the paper")
            continue
        draw_panel(
            axes,
            title,
            {cell: ratio_mark(grid.get(cell), cg.get(cell), page.count) for cell in cells},
            RATIO,
            RATIO_RANGE,
        )
        if column == 1:
            axes.set_yticklabels([])
        below = panels[number + 2] if number + 2 < len(panels) else None
        if below is None:
            axes.set_xlabel("log₁₀ lengthscale", fontsize=7.5, labelpad=1)
        elif below[1] is not None:
            axes.set_xticklabels([])
        if leftmost and column == 0:
            axes.set_ylabel("log₁₀ noise", fontsize=7.5, labelpad=1)
    if leftmost:
        top.set_ylabel("log₁₀ noise", fontsize=7.5, labelpad=1)


def draw_scales(figure: Figure, left: float, height: float) -> None:
    """Draw both colour scales in the right margin; ``height`` is that of the figure in inches."""
    lowest, highest = BOTTOM + 0.3, height - TOP - 1.95
    for bottom, top, colours, norm, label, ticks in (
        (height - TOP - 1.2, height - TOP, ITERATIONS, ITERATION_RANGE, "log₁₀ steps", range(5)),
        (lowest, highest, RATIO, RATIO_RANGE, "log₁₀ (recipe / CG)", range(-2, 3)),
    ):
        axes = figure.add_axes((left, bottom / height, 0.01, (top - bottom) / height))
        scale = figure.colorbar(ScalarMappable(norm, colours), cax=axes, ticks=list(ticks))
        scale.ax.tick_params(labelsize=7.5, length=2)
        scale.ax.set_yticklabels([minus(tick) for tick in ticks])
        scale.set_label(label, fontsize=8)
    figure.text(left, (highest + 0.08) / height, "loss", fontsize=8.5)
    figure.text(left, (lowest - 0.2) / height, "gain", fontsize=8.5)


def draw_legend(figure: Figure, page: Page, height: float) -> None:
    """Draw one cell of every kind, with its meaning, below the panels."""
    unit = "products than CG, set-up and inner solves included" if page.count == "products" else "steps than CG"
    meanings = [
        (Mark("−1.0", -1.0), f"ten times fewer {unit}"),
        (Mark("+1.0", 1.0, LOSS), "ten times more"),
        (Mark("312", None, ALONE), "312 of them, where CG is not within the cap"),
        (FAILS, f"not within the cap of {CAPS['concrete']:,} products (Protein: {CAPS['protein']:,})"),
    ]
    if any(method.recipe == "auto" for method in page.methods):
        meanings.append((DIRECT, "solved directly"))
    axes = figure.add_axes((0.035, 0.1 / height, 0.87, 0.22 / height))
    axes.set_axis_off()
    axes.set_ylim(0, 1)
    axes.set_xlim(0, 39)
    place = 0.0
    for mark, meaning in meanings:
        draw_cell(axes, (place, 0), mark, "white" if mark.value is None else to_hex(RATIO(RATIO_RANGE(mark.value))))
        axes.text(place + 1.2, 0.48, meaning, fontsize=8, va="center_baseline")
        place += 2.0 + 0.172 * len(meaning)


def draw(page: Page, grids: Grids, files: Sequence[Path], dpi: int = 150) -> None:
    """Draw one figure into each of these files."""
    width, height = 15.0, 1.55 + 1.28 * (page.rows + 1.3)
    figure = plt.figure(figsize=(width, height))
    outer = figure.add_gridspec(
        1, len(TITLES), left=0.035, right=0.905, bottom=BOTTOM / height, top=1 - TOP / height, wspace=0.1
    )
    figure.suptitle(page.title, fontsize=12, y=1 - 0.12 / height, va="top")
    for number, dataset in enumerate(TITLES):
        draw_set(figure, outer[number], page, grids, dataset, leftmost=number == 0)
    draw_scales(figure, 0.925, height)
    draw_legend(figure, page, height)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=dpi)
    plt.close(figure)


def main(words: Sequence[str] | None = None) -> None:
    """Draw both figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "figure1.csv")
    parser.add_argument("--out", type=Path, default=HERE / "figures", help="directory")
    parser.add_argument("--count", choices=("products", "steps"), default="products", help="what the ratios compare")
    parser.add_argument("--dpi", type=int, default=150, help="resolution of the PNG")
    parser.add_argument("--svg", action="store_true", help="also as SVG")
    options = parser.parse_args(words)
    grids = read(options.results)
    pages = {
        "figure1": Page("The eight preconditioners of Cutajar et al. (2016), figure 1", PAPER, False, options.count),
        "figure1_ours": Page("The same systems with the library’s own recipes", OURS, True, options.count),
    }
    for name, page in pages.items():
        files = [options.out / f"{name}.{kind}" for kind in ("png", "svg") if kind == "png" or options.svg]
        draw(page, grids, files, options.dpi)
        print(*(f"wrote {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
