"""Try an installed kernelcg with nothing but its dependencies: the compiled module is there, alone, and a fit works."""

import warnings
from pathlib import Path

import numpy as np

OPENMP = (b"libgomp", b"libiomp", b"libomp", b"vcomp1")
"""What the file of a module says that loads an OpenMP runtime: a second one beside torch's may end a process."""


def try_installed() -> str:
    """Return a sentence about what was tried; raise if anything is missing."""
    import kernelcg
    from kernelcg import _native, backends

    levels = [name for name, state in backends.levels().items() if state == "usable"]
    binary = Path(_native.__file__).read_bytes()
    loaded = [name for name in OPENMP if name in binary]
    if not levels or loaded:
        raise RuntimeError(f"instruction sets {levels}, OpenMP runtimes {loaded}")
    X = np.random.default_rng(0).uniform(size=(300, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = kernelcg.GPRegressor().fit(X, np.sin(5 * X[:, 0]))
    if model.plan_.backend != "native" or model.score(X, np.sin(5 * X[:, 0])) < 0.99:
        raise RuntimeError(f"the fit is wrong: {model.plan_}")
    return f"kernelcg {kernelcg.__version__} works with the compiled module: {', '.join(levels)}"


if __name__ == "__main__":
    print(try_installed())
