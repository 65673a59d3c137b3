"""The source tree alone computes, without the compiled module and with none of the extras."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"

WORK = """
import importlib.machinery, sys

MISSING = {"pandas", "typer", "rich", "altair", "distributed", "dask", "pyarrow", "gpytorch", "safetensors"}
finder = importlib.machinery.PathFinder

class Bare:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name == "kernelcg._native" or name.partition(".")[0] in MISSING
        return None if hidden else finder.find_spec(name, path, target)

sys.meta_path = [Bare if one is finder else one for one in sys.meta_path if isinstance(one, type)]
sys.path.insert(0, sys.argv[1])

import warnings
warnings.simplefilter("ignore")
import numpy as np
import kernelcg
from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge, backends, datasets

assert kernelcg.__file__.startswith(sys.argv[1])
usable = {name for name, found in backends.available().items() if found.usable}
assert "tiles" in usable and not usable & {"native", "dask"}, usable
X = np.random.default_rng(0).uniform(size=(40, 2))
mean, std = GPRegressor(max_iter=1).fit(X, X[:, 0]).predict(X[:3], return_std=True)
assert np.abs(mean - X[:3, 0]).max() < 0.1 and (std > 0).all()
few = {"max_iter": 1, "kernel": "rbf"}
assert GPClassifier(**few).fit(X, X[:, 0] > 0.5).predict_proba(X[:3]).shape == (3, 2)
assert GPGeneralizedRegressor(**few).fit(X, X[:, 0]).predict(X[:3]).shape == (3,)
assert KernelRidge().fit(X, X[:, 0]).predict(X[:3]).shape == (3,)
assert "uci_protein" in datasets.names()
print("computed")
"""


def test_the_sources_work_without_extras_and_compiled_module():
    if not (SOURCES / "kernelcg").is_dir():
        pytest.skip("there is no source tree")
    command = [sys.executable, "-c", WORK, str(SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "computed", done.stderr
