"""The same data, options and seed give the same bits: in little memory, on busy cores, after going on from files."""

import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

SCRIPT = """
import hashlib, sys, warnings
import numpy as np
from kernelcg import GPClassifier, GPRegressor
from kernelcg.estimators.training_files import save_state
from kernelcg.events import EventKind
warnings.simplefilter("ignore")
kind, ballast, folder, resume = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4] or None
held = np.ones(ballast // 8)  # written to, so that it is really taken
rng = np.random.default_rng(0)
X = rng.normal(size=(1500 if kind == "regressor" else 250, 3))
f = np.sin(2 * X[:, 0]) + X[:, 1]
y = f + 0.2 * rng.normal(size=len(f))
if kind == "regressor":
    model = GPRegressor(method="iterative", max_iter=4)
else:
    model, y = GPClassifier(method="iterative", probes=8, max_iter=6), y > 0
states = []
def listen(event):
    if event.kind is EventKind.STEP:
        states.append(event.payload.state)
model.fit(X, y, callback=listen, resume=resume)
if folder:
    for number in np.linspace(0, len(states) - 1, 5).astype(int):
        save_state(states[number], f"{folder}/{number}.state")
def digest(*values):
    return hashlib.sha256(b"".join(np.ascontiguousarray(value).tobytes() for value in values)).hexdigest()
Z = rng.normal(size=(40, 3))
predicted = model.predict(Z, return_std=True) if kind == "regressor" else [model.predict_proba(Z)]
theta = model.learning_.gp.log_parameters().numpy()
print(digest(theta), digest(*predicted), model.log_marginal_likelihood_value_.hex(), float(held[-1]))
"""

BALLAST = 1_500_000_000

BUSY = "import time\nend = time.time() + 300\nwhile time.time() < end: sum(range(10000))"


def numbers(kind, *, ballast=8, folder="", resume=""):
    environment = {**os.environ, "KERNELCG_PROFILE": "typical", "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, kind, str(ballast), str(folder), str(resume)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def busy_cores():
    """Keep every core busy while this lasts."""
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_bits_do_not_depend_on_what_else_happens(kind, tmp_path):
    undisturbed = numbers(kind, folder=tmp_path)
    assert numbers(kind, ballast=BALLAST) == undisturbed
    with busy_cores():
        assert numbers(kind) == undisturbed
    written = sorted(tmp_path.glob("*.state"))
    assert len(written) == 5
    for state in written:
        assert numbers(kind, resume=state) == undisturbed, state.name
