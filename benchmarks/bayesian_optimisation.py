"""Bayesian optimisation with kernelcg's model and with GPyTorch's: regret after the same number of evaluations.

The function is Hartmann's in six dimensions, whose least value is −3.32237. Each run begins with the same random points
for both models and adds one at a time, where BoTorch's qLogExpectedImprovement is largest. Both models are fitted anew
after every evaluation: GPRegressor(kernel="matern52") and SingleTaskGP, each with its defaults otherwise. The regret is
the distance of the best value so far from the optimum. Writes results/bayesian_optimisation.csv, a row for each model
and seed that is not there yet, and prints the medians.

    python benchmarks/bayesian_optimisation.py [--seeds 10] [--evaluations 60]
"""

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.test_functions import Hartmann
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from kernelcg import GPRegressor
from kernelcg.botorch_model import BoTorchModel

RESULTS = Path(__file__).parent / "results" / "bayesian_optimisation.csv"
FIELDS = ("model", "seed", "first points", "evaluations", "regret", "cpu seconds")

DIMENSIONS, FIRST = 6, 12
OPTIMUM = 3.32237
"""The largest value of minus Hartmann's function."""


def ours(X: Tensor, y: Tensor) -> Any:
    """Return kernelcg's model."""
    return BoTorchModel(GPRegressor(kernel="matern52").fit(X.numpy(), y.numpy()))


def theirs(X: Tensor, y: Tensor) -> Any:
    """Return GPyTorch's model with BoTorch's defaults."""
    model = SingleTaskGP(X, y[:, None], outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


MODELS: dict[str, Callable[[Tensor, Tensor], Any]] = {"kernelcg": ours, "GPyTorch": theirs}


def regret_of(model: Callable[[Tensor, Tensor], Any], seed: int, evaluations: int) -> float:
    """Return how far the best of so many values is from the optimum."""
    function = Hartmann(dim=DIMENSIONS, negate=True)
    X = torch.rand(FIRST, DIMENSIONS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    y, bounds = function(X), torch.stack([torch.zeros(DIMENSIONS), torch.ones(DIMENSIONS)]).double()
    torch.manual_seed(seed)  # BoTorch draws its starting points and base samples from torch's own generator
    while len(y) < evaluations:
        acquisition = qLogExpectedImprovement(model(X, y), best_f=y.max())
        new, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=4, raw_samples=128)
        X, y = torch.cat([X, new]), torch.cat([y, function(new)])
    return OPTIMUM - float(y.max())


def known() -> list[dict[str, str]]:
    """Return the rows that are there."""
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return list(csv.DictReader(file))


def run(name: str, seed: int, evaluations: int) -> None:
    """Add the row of one run."""
    began = time.process_time()
    regret = regret_of(MODELS[name], seed, evaluations)
    row = (name, seed, FIRST, evaluations, f"{regret:.5f}", f"{time.process_time() - began:.1f}")
    fresh = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(FIELDS)
        writer.writerow(row)
    print(*row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--evaluations", type=int, default=60)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # BoTorch's, about inputs and restarts, and early ends of learning
    done = {(row["model"], row["seed"], row["evaluations"]) for row in known()}
    for seed in range(options.seeds):
        for name in MODELS:
            if (name, str(seed), str(options.evaluations)) not in done:
                run(name, seed, options.evaluations)
    for name in MODELS:
        rows = [row for row in known() if (row["model"], row["evaluations"]) == (name, str(options.evaluations))]
        regrets = [float(row["regret"]) for row in rows if int(row["seed"]) < options.seeds]
        print(f"{name}: median regret {np.median(regrets):.4f} of {len(regrets)} seeds")


if __name__ == "__main__":
    main()
