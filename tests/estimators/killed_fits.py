"""Fits that are killed at random moments and go on from their checkpoint: they end with the numbers of a whole one.

Run as a script it kills 20 fits of each kind: python tests/estimators/killed_fits.py [--moments 20] [--seed 7]
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FITS = {
    "regression by Cholesky": ("GPRegressor(method='direct')", "y"),
    "regression by PCG": ("GPRegressor(method='iterative', max_iter=5)", "y"),
    "stochastic gradients": ("GPRegressor(method='iterative', optimizer='adam', max_iter=12)", "y"),
    "two classes": ("GPClassifier(method='iterative', max_iter=3)", "f > 0"),
    "classes one against the rest": ("GPClassifier(likelihood='logit', max_iter=3)", "np.digitize(f, [-0.5, 0.5])"),
    "counts": ("GPGeneralizedRegressor(likelihood='poisson', max_iter=5)", "np.round(np.exp(f))"),
}
"""Estimators and their targets, as Python."""

CHILD = """
import sys, warnings
from pathlib import Path
import numpy as np
from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor
from kernelcg.estimators.training_files import checkpoints
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
X = rng.normal(size=(150, 2))
f = np.sin(2 * X[:, 0]) + X[:, 1]
y = f + 0.1 * rng.normal(size=150)
print("begins", flush=True)
for state in map(Path, sys.argv[1:]):
    model, target = ESTIMATOR, TARGET
    model.fit(X, target, callback=checkpoints(state, every=0.0), resume=state if state.exists() else None)
    learned = model.learning_ if isinstance(model.learning_, tuple) else (model.learning_,)
    theta = np.concatenate([one.gp.log_parameters().numpy() for one in learned])
    found = np.concatenate([theta, [len(one.steps) for one in learned], np.ravel(model.predict(X[:5]))])
    np.save(state.with_suffix(".npy"), found)
"""


def child(fit: str, *states: Path) -> subprocess.Popen[str]:
    """Return a process that is about to fit, or for states that are there to go on, one after the other."""
    estimator, target = FITS[fit]
    code = CHILD.replace("ESTIMATOR", estimator).replace("TARGET", target)
    process = subprocess.Popen([sys.executable, "-c", code, *states], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    return process


def whole(fit: str, folder: Path) -> tuple[bytes, float]:
    """Return what an undisturbed fit ends with, and the seconds that it takes."""
    with child(fit, folder / "whole.state") as process:
        began = time.monotonic()
        assert process.wait() == 0
    return (folder / "whole.npy").read_bytes(), time.monotonic() - began


def killed(fit: str, moments: list[float], folder: Path) -> list[tuple[bytes, bool]]:
    """Return what fits end with that are killed after so many seconds each and go on, and whether they had a state.

    Each is killed in a process of its own; one fresh process goes on with all of them.
    """
    states = [folder / f"{number}.state" for number in range(len(moments))]
    for state, seconds in zip(states, moments, strict=True):
        with child(fit, state) as first:
            time.sleep(seconds)
            first.send_signal(signal.SIGKILL)
    had_state = [state.exists() for state in states]
    with child(fit, *states) as second:
        assert second.wait() == 0
    return [(state.with_suffix(".npy").read_bytes(), had) for state, had in zip(states, had_state, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--fits", nargs="+", choices=FITS, default=list(FITS))
    options = parser.parse_args()
    source, failures = random.Random(options.seed), 0
    print(f"seed {options.seed}")
    for fit in options.fits:
        with tempfile.TemporaryDirectory() as folder:
            truth, duration = whole(fit, Path(folder))
            moments = [source.uniform(0, duration) for _ in range(options.moments)]
            found = killed(fit, moments, Path(folder))
        same, states = sum(one == truth for one, _ in found), sum(had_state for _, had_state in found)
        failures += len(found) - same
        print(f"{fit}: {same} of {len(found)} the same bytes, {states} went on from a state", flush=True)
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
