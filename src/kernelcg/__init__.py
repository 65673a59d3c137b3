"""Exact Gaussian processes and kernel machines by preconditioned conjugate gradients.

    >>> import numpy as np
    >>> from kernelcg import GPRegressor
    >>> X = np.linspace(0, 6, 50)[:, None]
    >>> model = GPRegressor().fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict([[1.0], [2.0]], return_std=True)
    >>> print(model.certificate_)

`GPRegressor` predicts numbers, `GPClassifier` classes, `GPGeneralizedRegressor` counts, proportions, amounts and
data with outliers, `KernelRidge` numbers without variances. All have scikit-learn's methods, ``plan(X, y)``, which says
what a fit would take, and a ``certificate_`` that says how far the numbers may be off. `load` reads a model that was
saved, `compare` compares methods on data of one's own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from kernelcg.comparison import compare
    from kernelcg.estimators import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge, load

__all__ = ["GPClassifier", "GPGeneralizedRegressor", "GPRegressor", "KernelRidge", "compare", "load"]


def __getattr__(name: str) -> Any:
    """Import the estimators when they are first asked for: the core needs neither scikit-learn nor safetensors."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("kernelcg")
        except PackageNotFoundError:  # used from a source tree that was not installed
            return "unknown"
    if name in __all__:
        return getattr(import_module("kernelcg.comparison" if name == "compare" else "kernelcg.estimators"), name)
    raise AttributeError(f"module 'kernelcg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
