"""How near to the best of several restarts a default fit ends, where Cholesky factors tell the evidence exactly.

    python benchmarks/evidence_reached.py                                        # all cases, about half an hour
    python benchmarks/evidence_reached.py --data uci_energy --folds 0 1 --rows 300

Writes results/evidence_reached.csv. Data and folds are those of ``gp_regression.py`` (uci_* by their standard test
masks, concrete by the folds of the paper where they are at hand, else every tenth row), with at most ``--rows`` rows to
train on. "reached" is the log marginal likelihood plus the log density of the default priors at the hyperparameters of
`GPRegressor()`, computed exactly. "best" is the largest of the same function that SciPy's L-BFGS-B finds with exact
values and gradients, from the same start and from ``--restarts`` − 1 random ones, with the same priors and bounds, on
all rows. "gap" is best less reached: below 0 the default fit ended higher. CPU seconds are those of all threads.
"""

import argparse
import math
import time
import warnings
from typing import Any

import numpy as np
from gp_regression import PAPER_FOLDS, Array, load, paper_file
from numpy.typing import NDArray
from scipy.optimize import minimize
from table import Table

from kernelcg import GPRegressor, datasets
from kernelcg.inference.gaussian.likelihood_by_cholesky import direct_estimate

SETS = ("uci_energy", "uci_airfoil", "concrete", "uci_pol", "uci_elevators")
MOST_ROWS = 2500


def training_rows(name: str, fold: int, most: int) -> tuple[Array, Array]:
    """Return standardised inputs and targets of the training rows, at most so many."""
    if name in PAPER_FOLDS and not paper_file("fold_test_indices.json.gz").exists():
        data = datasets.load(name)
        kept = np.arange(len(data.y)) % 10 != fold
        spread = data.X[kept].std(0)
        X, y = (data.X[kept] - data.X[kept].mean(0)) / np.where(spread > 0, spread, 1.0), data.y[kept]
    else:
        X, y = load(name, fold)[:2]
    some = np.random.default_rng(fold).permutation(len(y))[:most]
    return np.ascontiguousarray(X[some]), y[some]


def climbed(function: Any, start: NDArray[np.float64], bounds: NDArray[np.float64]) -> tuple[Any, float]:
    """Return what SciPy finds; the library hands over its criterion with the sign turned."""
    found = minimize(function, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 500})
    return found.x, float(found.fun)


def exact(model: Any) -> float:
    """Return the log marginal likelihood plus the log density of the default priors."""
    learned = model.learning_
    return direct_estimate(model.posterior_.problem, learned.gp).value + (learned.default_log_prior or 0.0)


def fitted(X: Array, y: Array, **options: Any) -> tuple[Any, float]:
    """Return a fitted model and the CPU seconds that the fit took."""
    began = time.process_time()
    model = GPRegressor(random_state=0, **options).fit(X, y)
    return model, time.process_time() - began


def row(name: str, fold: int, most: int, restarts: int) -> dict[str, object]:
    """Return one row of the table."""
    X, y = training_rows(name, fold, most)
    fitted(X[:50], y[:50])  # what is loaded at first use is not counted
    model, seconds = fitted(X, y)
    other, their_seconds = fitted(X, y, optimizer=climbed, n_restarts=restarts - 1, method="direct")
    reached, best = exact(model), exact(other)
    return {
        "data": name,
        "fold": fold,
        "n": len(y),
        "d": X.shape[1],
        "method": str(model.plan_.method.value),
        "reached": round(reached, 3),
        "best": round(best, 3),
        "gap": round(best - reached, 3),
        "evaluations": model.learning_.evaluations,
        "evaluations of restarts": other.learning_.evaluations,
        "cpu s": round(seconds, 3),
        "cpu s of restarts": round(their_seconds, 3),
    }


def main() -> None:
    summary, _, details = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--folds", nargs="+", type=int, default=None, help="0, 1, ... of uci_*; 1, 2, ... of concrete")
    parser.add_argument("--rows", type=int, default=MOST_ROWS, help="most training rows")
    parser.add_argument("--restarts", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = Table()
    for name in options.data:
        usual = PAPER_FOLDS.get(name, (0, 1, 2) if name in ("uci_energy", "uci_airfoil") else (0,))
        for fold in options.folds or usual:
            table.add(row(name, fold, min(options.rows, MOST_ROWS), options.restarts))
    table.save("evidence_reached.csv")
    worst = max(float(str(one["gap"])) for one in table.rows)
    print(f"largest gap {worst:.3f} nats" if math.isfinite(worst) else "a gap is not finite")


if __name__ == "__main__":
    main()
