"""A recipe is one file: dropped into the folder it is everywhere, and under the contract."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kernelcg

HERE = Path(__file__).parent

RECIPE = '''
"""A recipe that somebody wrote yesterday."""

from typing import ClassVar

from kernelcg.preconditioners.base import Preconditioner
from kernelcg.preconditioners.low_rank_remainder import DiagonalRemainder, LowRankAndRemainder


class MeanDiagonal(Preconditioner):
    """Replace the diagonal of K by its mean.

    More words that no list shows.
    """

    COST: ClassVar[str] = "build O(n), apply O(n k)"

    weight: float = 1.0

    def prepare(self, K, generator):
        return LowRankAndRemainder(None, DiagonalRemainder(self.weight * K.diagonal().mean().expand(len(K)).clone()))
'''

BROKEN = '''
from typing import ClassVar

from kernelcg.preconditioners.base import Preconditioner
from kernelcg.preconditioners.shapes import Diagonal


class Off(Diagonal):
    def unwhiten(self, R):
        return R * self.root


class Wrong(Preconditioner):
    """Multiply where one should divide."""

    COST: ClassVar[str] = "build O(n), apply O(n k)"

    def prepare(self, K, generator):
        return self

    def factor(self, scale, diagonal):
        return Off(diagonal)
'''

SCRIPT = """
import importlib.util, json, sys

folder, *tests = sys.argv[1:]
sys.path += tests
spec = importlib.util.find_spec("kernelcg.preconditioners.recipes")
spec.submodule_search_locations.append(folder)  # as if the file lay in the package's own folder
package = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = package
spec.loader.exec_module(package)

from contract import check_contract, cases
from hypothesis import given, settings
from kernelcg.preconditioners import available, recipe

def verdict(name):
    @settings(max_examples=10, database=None, derandomize=True, deadline=None)
    @given(cases(name))
    def kept(case):
        check_contract(case)
    try:
        kept()
    except AssertionError:
        return "broken"
    return "kept"

found = available()
print(json.dumps({
    name: {
        "listed": list(found),
        "description": cls.description(),
        "cost": cls.COST,
        "options": cls.options(),
        "made": repr(recipe(name, **cls.options())),
        "in paper": cls.IN_PAPER,
        "contract": verdict(name),
    }
    for name, cls in found.items() if cls.__module__.rpartition(".")[2] in ("dropped", "wrong", "jacobi")
}))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What a fresh Python says about two recipes dropped in, and about one of our own."""
    folder = tmp_path_factory.mktemp("folder")
    (folder / "dropped.py").write_text(RECIPE)
    (folder / "wrong.py").write_text(BROKEN)
    paths = [str(HERE), str(HERE.parent), *(str(Path(path).parent) for path in kernelcg.__path__)]
    run = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder), *paths]
    done = subprocess.run(run, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_it_appears_everywhere(found):
    ours = found["mean_diagonal"]
    assert {"mean_diagonal", "jacobi", "nystrom", "vecchia"} < set(ours["listed"])
    assert ours["description"] == "Replace the diagonal of K by its mean."
    assert ours["cost"] == "build O(n), apply O(n k)"
    assert ours["options"] == {"weight": 1.0}
    assert ours["made"] == "MeanDiagonal(weight=1.0)"
    assert ours["in paper"] is False


def test_it_is_under_the_contract(found):
    """One that keeps it passes, as ours do; one that does not is found out."""
    assert found["mean_diagonal"]["contract"] == "kept"
    assert found["jacobi"]["contract"] == "kept"
    assert found["wrong"]["contract"] == "broken"
