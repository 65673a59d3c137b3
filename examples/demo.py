"""Restore a photograph from a seventh of its pixels with an exact Gaussian process; solve its system five ways.

The photograph comes with scikit-learn (china.jpg, see its licence there). The three colours share one kernel,
whose hyperparameters are learned from 10,000 noisy pixels. Run it with `make photograph`.
"""

import time
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_sample_image
from torch import Tensor

from kernelcg import GPRegressor, planning
from kernelcg.backends import available
from kernelcg.kernels import Matern
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.solvers import SolveReport, Stopping, solve

PIXELS = 10_000
NOISE = 0.1


@dataclass
class Photograph:
    """Pixel coordinates and colours in [0, 1], and which of them are observed, with what noise."""

    height: int
    width: int
    where: Tensor
    colours: Tensor
    observed: Tensor
    noisy: Tensor


def photograph(generator: torch.Generator) -> Photograph:
    picture = load_sample_image("china.jpg")[:426, :, :].reshape(213, 2, 320, 2, 3).mean((1, 3)) / 255
    height, width, _ = picture.shape
    where = torch.cartesian_prod(torch.arange(height), torch.arange(width)).double()
    colours = torch.from_numpy(picture.reshape(-1, 3))
    observed = torch.randperm(len(where), generator=generator)[:PIXELS]
    noise = NOISE * torch.randn(PIXELS, 3, generator=generator, dtype=torch.float64)
    return Photograph(height, width, where, colours, observed, colours[observed] + noise)


def runs(A: KernelPlusDiagonal, B: Tensor) -> dict[str, SolveReport]:
    single, stopping = A.with_precision(torch.float32), Stopping(rtol=1e-5)
    return {
        "CG, column by column": solve(A, B, method="cg", stopping=stopping),
        "block CG": solve(A, B, method="block_pcg", stopping=stopping),
        "block CG, float32": solve(single, B, method="block_pcg", stopping=stopping),
        "chosen automatically": planning.solve(single, B, stopping=stopping),
        "Cholesky": solve(A, B, method="direct", stopping=stopping),
    }


def table(reports: dict[str, SolveReport], n: int) -> Table:
    caption = "residual: largest |b - Ax| / |b| over the columns, recomputed in float64"
    result = Table(title=f"Solving (K + λI) X = B, n = {n:,}, three right-hand sides", caption=caption)
    for heading in ("method", "steps", "products", "seconds", "K stored", "residual", "status"):
        result.add_column(heading, justify="left" if heading in ("method", "status") else "right")
    for name, report in reports.items():
        stored = f"{8 * n * n / 1e9:.2f} GB" if report.method == "direct" else "none"
        result.add_row(
            name,
            str(int(report.iterations.max())),
            str(report.products),
            f"{report.seconds:.2f}",
            stored,
            f"{float(report.relative_residuals.max()):.1e}",
            report.status.name.lower(),
        )
    return result


def draw(photo: Photograph, restored: Tensor, reports: dict[str, SolveReport], path: str) -> None:
    given = np.ones((photo.height * photo.width, 3))
    given[photo.observed.numpy()] = photo.noisy.clamp(0, 1).numpy()
    pictures = {
        f"given: {PIXELS:,} noisy pixels of {len(given):,}": given,
        "restored by the exact posterior mean": restored.clamp(0, 1).numpy(),
        "original": photo.colours.numpy(),
    }
    figure, axes = plt.subplots(2, 2, figsize=(11, 7.6), layout="constrained")
    for axis, (title, values) in zip(axes.flat, pictures.items(), strict=False):
        axis.imshow(values.reshape(photo.height, photo.width, 3))
        axis.set_title(title)
        axis.set_axis_off()
    curves = axes[1, 1]
    for (name, report), style in zip(reports.items(), ("-", "--", ":", "-.", "o"), strict=True):
        worst = (report.residual_norms / report.right_hand_norms).max(1).values
        curves.semilogy(worst.numpy(), style, color="black", label=name, linewidth=1.5, markersize=5)
    curves.set(title="worst relative residual", xlabel="iteration")
    curves.legend(frameon=False)
    figure.savefig(path, dpi=110)


def fitted(photo: Photograph, console: Console) -> GPRegressor:
    """Learn lengthscales, variance and noise from the noisy pixels; say what was done and what can be promised."""
    model = GPRegressor(Matern([12.0, 12.0], nu=0.5), normalize_y=False)
    began = time.perf_counter()
    model.fit(photo.where[photo.observed].numpy(), photo.noisy.numpy())
    learned = model.learning_
    console.print(f"plan: {model.plan_}", highlight=False)
    console.print(
        f"learned in {time.perf_counter() - began:.1f} s, {learned.evaluations} evaluations on "
        f"{', '.join(f'{rows:,}' for rows in sorted({step.rows for step in learned.steps}))} pixels: {learned.reason}",
        highlight=False,
    )
    console.print(f"{model.kernel_}, noise variance {model.noise_:.4f} (true {NOISE**2:g})", highlight=False)
    console.print(f"certificate: {model.certificate_}", highlight=False)
    return model


def main() -> None:
    console = Console()
    generator = torch.Generator().manual_seed(0)
    for name, state in available().items():
        console.print(f"backend {name}: {'usable' if state.usable else 'not usable'}, {state.reason}", highlight=False)
    photo = photograph(generator)
    model = fitted(photo, console)
    restored = torch.from_numpy(model.predict(photo.where.numpy()))
    error = (restored - photo.colours).square().mean()
    console.print(f"restored picture: {-10 * torch.log10(error):.1f} dB peak signal to noise", highlight=False)

    A = model.posterior_.problem.system(model.posterior_.gp)
    reports = runs(A, photo.noisy - photo.noisy.mean(0))
    console.print(table(reports, PIXELS))
    for attempt in reports["chosen automatically"].attempts:
        console.print(f"automatic choice: {attempt}", highlight=False)
    draw(photo, restored, reports, "demo.png")
    console.print("wrote demo.png")


if __name__ == "__main__":
    main()
