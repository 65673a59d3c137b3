"""``memory`` is kept by fit and by predict: the growth of a process of its own, as the system measures it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys, warnings
import numpy as np
from kernelcg import GPRegressor
from kernelcg.kernels import RBF

def held(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

def grown(work):
    open("/proc/self/clear_refs", "w").write("5")  # the largest size so far becomes the present one
    before = held("VmRSS")
    work()
    return held("VmHWM") - before

n, memory, points, steps = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rng = np.random.default_rng(0)
X, Z = rng.uniform(size=(n, 3)), rng.uniform(size=(points, 3))
y = np.sin(6 * X[:, 0]) + X[:, 1] * np.cos(5 * X[:, 2]) + 0.3 * rng.normal(size=n)
model = GPRegressor(RBF(0.3), noise=0.1, optimizer="lbfgs" if steps else None, max_iter=steps, memory=memory)
warnings.simplefilter("ignore")  # few steps are an early end
fit = grown(lambda: model.fit(X, y))
predict = grown(lambda: model.predict(Z, return_std=True))
print(json.dumps({"fit": fit, "predict": predict, "planned": model.plan_.bytes, "met": model.certificate_.met}))
"""


def resettable():
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


@pytest.mark.skipif(not resettable(), reason="the system does not say how large a process was")
@pytest.mark.parametrize(
    ("rows", "memory", "points", "steps"),
    [(20_000, 5 * 10**8, 200, 0), (1_500, 7 * 10**7, 100, 3)],
    ids=["iterating", "no room for a factor"],
)
def test_fit_and_predict_keep_the_memory(rows, memory, points, steps):
    words = [str(rows), f"{memory // 10**6}MB", str(points), str(steps)]
    environment = {**os.environ, "KERNELCG_PROFILE": "typical"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["met"]
    assert found["planned"] <= memory
    assert found["fit"] <= memory
    assert found["predict"] <= memory
