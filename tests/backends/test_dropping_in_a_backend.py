"""A backend is one file: dropped into the folder it is found, listed, chosen where it says so, and usable by name."""

import json
import subprocess
import sys

import pytest

BACKEND = '''
"""A backend that somebody wrote yesterday."""

from dataclasses import dataclass

from kernelcg.backends.base import Backend
from kernelcg.backends.tiles import TilesMatrix
from kernelcg.kernels import RBF

CALLS = []


class NotedMatrix(TilesMatrix):
    def _product(self, V, dtype):
        CALLS.append(V.shape[1])
        return super()._product(V, dtype)


@dataclass(frozen=True, eq=False)
class Noted(Backend):
    """Note how many columns each product has.

    More words that no list shows.
    """

    @classmethod
    def why_not(cls):
        return None

    @classmethod
    def preference(cls, device):
        return 1 if device == "xpu" else None

    def computes(self, kernel, X):
        return type(kernel) is RBF

    def matrix(self, kernel, points):
        return NotedMatrix(kernel, points)
'''

ELSEWHERE = '''
from kernelcg.backends.tiles import Tiles


class OnTheMoon(Tiles):
    """Products on another machine."""

    @classmethod
    def why_not(cls):
        return "there is no line to the moon"

    @classmethod
    def preference(cls, device):
        return 99
'''

SCRIPT = """
import importlib.util, json, sys

import kernelcg.kernels
folder = sys.argv[1]
for name in [name for name in sys.modules if name.startswith("kernelcg.backends")]:
    del sys.modules[name]
spec = importlib.util.find_spec("kernelcg.backends")
spec.submodule_search_locations.append(folder)  # as if the file lay in the package's own folder
package = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = package
spec.loader.exec_module(package)

import torch
from kernelcg import backends
from kernelcg.backends import noted
from kernelcg.kernels import RBF, Linear

backend = backends.named("noted", "1GB", 1)
X = torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
kernel = 2.0 * RBF(0.8) + Linear(0.5)  # only one part of it is the backend's own
K = backend.bind(kernel, X)
error = float((K.product(X) - kernel(X, X) @ X).abs().max())
K.with_kernel(RBF(1.0)).product(X[:, :1])
try:
    backends.named("on_the_moon")
except RuntimeError as refusal:
    refused = str(refusal)
print(json.dumps({
    "listed": {name: [one.usable, one.reason] for name, one in backends.available().items()},
    "default": {device: backends.default(device=device).name() for device in ("cpu", "xpu", "cuda")},
    "budget": backend.budget(),
    "calls": noted.CALLS,
    "error": error,
    "refused": refused,
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a fresh Python says with two backends dropped in."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "noted.py").write_text(BACKEND)
    (folder / "elsewhere.py").write_text(ELSEWHERE)
    run = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_is_listed(found):
    assert {"noted", "on_the_moon", "native", "tiles", "triton", "dask"} == set(found["listed"])
    assert found["listed"]["noted"] == [True, "Note how many columns each product has."]
    assert found["listed"]["on_the_moon"] == [False, "there is no line to the moon"]


def test_it_is_the_default_where_it_is_preferred_and_can_be_used(found):
    assert found["default"]["xpu"] == "noted"
    assert found["default"]["cpu"] in ("native", "tiles")
    assert found["default"]["cuda"] == "tiles"


def test_it_is_used_by_name_for_what_it_computes(found):
    assert found["budget"] == 10**9
    assert found["calls"] == [2, 1]
    assert found["error"] < 1e-12
    assert "there is no line to the moon" in found["refused"]
