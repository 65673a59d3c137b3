"""What the tests are made of: drawn kernels and data, and the fixed lists that contract tests run over."""

import numpy as np
import torch
from hypothesis import strategies as st

from kernelcg.kernels import RBF, Constant, Linear, Matern, Periodic, RationalQuadratic

DTYPES = {"float32": torch.float32, "float64": torch.float64}

NATIVE = {
    "native baseline": {"level": "baseline", "threads": 1},
    "native avx2": {"level": "avx2", "threads": 1},
    "native avx512": {"level": "avx512", "threads": 1},
    "native": {"threads": 2},
}
TRITON = ("triton", "triton gpu")
"""The Triton backend on the CPU, by Triton's interpreter, and on a GPU."""

BACKENDS = ["tiles", "dense", *NATIVE, *TRITON]

positive = st.floats(0.2, 5.0)
seeds = st.integers(0, 2**31 - 1)
sizes = st.integers(1, 40)
features = st.integers(1, 6)

POINTS = ("gaussian", "grid", "repeated", "one feature constant")


@st.composite
def points(draw, n, d):
    """Draw n points as a float64 tensor: scattered, on a grid (ties in many pairs), all in pairs, or degenerate."""
    style, generator = draw(st.sampled_from(POINTS)), np.random.default_rng(draw(seeds))
    X = generator.standard_normal((n, d))
    if style == "grid":
        X = np.round(X)
    elif style == "repeated":
        X = X[np.arange(n) // 2]
    elif style == "one feature constant":
        X[:, 0] = 3.0
    return torch.from_numpy(X)


@st.composite
def columns(draw, n, k):
    """Draw an (n, k) block of normal entries."""
    return torch.from_numpy(np.random.default_rng(draw(seeds)).standard_normal((n, k)))


def normal(rows, count, seed=0):
    """Return a (rows, count) block of normal entries that are the same in every run."""
    return torch.randn(rows, count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def per_feature(d):
    """Draw one positive number, or one for each feature."""
    return st.one_of(positive, st.lists(positive, min_size=d, max_size=d))


def stationary_kernels(d):
    """Draw a kernel that is a function of x − y, without parts."""
    return st.one_of(
        st.builds(RBF, per_feature(d), positive),
        st.builds(Matern, per_feature(d), positive, nu=st.sampled_from((0.5, 1.5, 2.5))),
        st.builds(RationalQuadratic, per_feature(d), positive, positive),
        st.builds(Periodic, per_feature(d), per_feature(d), positive),
        st.builds(Constant, positive),
    )


def kernels(d):
    """Draw any kernel of the library, sums and products of up to three parts included."""
    leaves = st.one_of(stationary_kernels(d), st.builds(Linear, per_feature(d)))

    def combine(parts):
        return st.one_of(
            st.builds(lambda left, right: left + right, parts, parts),
            st.builds(lambda left, right: left * right, parts, parts),
            st.builds(lambda part, factor: factor * part, parts, positive),
        )

    return st.recursive(leaves, combine, max_leaves=3)


def _ard(d, first=0.5, last=2.0):
    return torch.linspace(first, last, d, dtype=torch.float64) * d**0.5


STATIONARY = {
    "rbf": lambda d: RBF(0.7 * d**0.5, 1.3),
    "rbf ard": lambda d: RBF(_ard(d), 0.6),
    "matern12": lambda d: Matern(1.2 * d**0.5, 0.8, nu=0.5),
    "matern12 ard": lambda d: Matern(_ard(d), 1.7, nu=0.5),
    "matern32": lambda d: Matern(0.9 * d**0.5, 2.1, nu=1.5),
    "matern32 ard": lambda d: Matern(_ard(d), 2.1, nu=1.5),
    "matern52": lambda d: Matern(1.1 * d**0.5, 1.4, nu=2.5),
    "matern52 ard": lambda d: Matern(_ard(d), 0.9, nu=2.5),
    "rational quadratic": lambda d: RationalQuadratic(_ard(d), 1.1, 0.6),
    "periodic": lambda d: Periodic(_ard(d), _ard(d, 3.0, 1.0), 1.5),
    "constant": lambda d: Constant(1.9),
    "multiple": lambda d: 2.5 * RBF(_ard(d), 0.8),
    "sum": lambda d: RBF(0.7 * d**0.5) + 0.3 * Matern(_ard(d), nu=0.5),
    "product": lambda d: Periodic(d**0.5, 1.7) * RBF(2.0 * d**0.5),
    "multiple of a sum": lambda d: Constant(0.4) * (Matern(_ard(d), nu=2.5) + RBF(1.0 * d**0.5, 3.0)),
}
"""Kernels k(x − y) by name, for data with d features of unit variance."""

KERNELS = STATIONARY | {
    "linear": lambda d: Linear(_ard(d) / d),
    "sum with linear": lambda d: RBF(_ard(d)) + Linear(0.5 / d),
    "product with linear": lambda d: Matern(1.5 * d**0.5, nu=1.5) * Linear(1.0 / d),
}
"""The same and nonstationary ones."""

FUSED = [
    name for name in KERNELS if name.startswith(("rbf", "matern")) or name in ("multiple", "sum", "multiple of a sum")
]
"""Those that the native and the Triton backend have code of their own for."""

OWN_CODE = {
    "tiles": list(KERNELS),
    "native": list(KERNELS),
    "dense": ["rbf", "sum", "product with linear"],
    "triton": ["rbf", "matern12 ard", "matern32", "matern52 ard", "multiple of a sum"],  # the interpreter is slow
}
"""Kernels that a backend is tried with, where they are not `FUSED`."""

CONTRACT = [(backend, name) for backend in BACKENDS for name in OWN_CODE.get(backend, FUSED)]
"""Which backend is tried with which kernel: only where the pair runs code of its own."""
