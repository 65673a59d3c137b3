"""Prices of kernels on this machine: which parts a backend fuses, and how long formulas of a user's own take."""

import hashlib
from types import FunctionType

import torch
from torch import Tensor

from kernelcg.backends import Backend
from kernelcg.backends.binding import constant_factor
from kernelcg.kernels import RBF, Kernel, Mapped, Matern, Product, Sum
from kernelcg.operators import KernelPlusDiagonal
from kernelcg.planning.costs import Costs, KernelPrice, Pricing
from kernelcg.planning.profile import best_of, current, describe, is_typical
from kernelcg.planning.remembered import Timing, remembered

TIMED_ROWS, REPEATS = 256, 3
"""Rows of the block on which a formula is timed, and how often."""

TYPICAL_ENTRY = 2.0**-27
"""Seconds of an entry of a formula of a user's own, where typical numbers are gone by: that of a few elementary
functions for each pair."""


def pricing_of(kernel: Kernel, X: Tensor, backend: Backend) -> Pricing:
    """Return what work with this kernel costs by the profile of this machine."""
    return Pricing(current(backend, X.device), priced(kernel, X, backend), workers_memory=backend.memory_of_workers())


def costs_of(pricing: Pricing, A: KernelPlusDiagonal, k: int) -> Costs:
    """Return the costs of solving with A for k columns."""
    return pricing.costs(len(A), A.X.shape[1], k, A.precision, stored=A.K.is_stored)


def priced(kernel: Kernel, X: Tensor, backend: Backend) -> KernelPrice:
    """Return what an entry of K costs: parts that the backend fuses, and the time of all others on a few rows.

    Parts are those into which `kernelcg.backends.binding.matrix_of` divides a kernel. The time of a formula is measured
    once on a machine, for each number of features, and then remembered: the same kernel has the same price next time,
    however busy the machine is.
    """
    if type(kernel) is Sum:
        parts = [priced(part, X, backend) for part in (kernel.left, kernel.right)]
        return KernelPrice(sum(part.fused for part in parts), sum(part.seconds for part in parts))
    if type(kernel) is Product and (found := constant_factor(kernel)):
        return priced(found[1], X, backend)
    if isinstance(kernel, Mapped):
        return priced(kernel.part, kernel.inputs(X[:TIMED_ROWS].double()), backend)
    own = backend.here
    if own.computes(kernel, X) and type(kernel) in (RBF, Matern):  # what the profile measures
        return KernelPrice()
    if is_typical():
        return KernelPrice(0, TYPICAL_ENTRY)
    machine = describe(own.name(), own.threads, str(X.device))
    label = f"{machine}, {X.shape[1]} features, {_formula(kernel)}"
    return KernelPrice(0, remembered(Timing(label, lambda: _seconds(kernel, X[:TIMED_ROWS].double(), own))))


def _seconds(kernel: Kernel, rows: Tensor, backend: Backend) -> float:
    """Return the seconds of an entry, by code of the backend's own if it has some, else by the formula."""
    with torch.no_grad():
        work = backend.bind(kernel, rows).block if backend.computes(kernel, rows) else lambda: kernel(rows, rows)
        return best_of(REPEATS, work) / len(rows) ** 2


def _formula(kernel: Kernel) -> str:
    """Return a text that is the same for kernels that compute the same, whatever their hyperparameters are."""
    kind, formula = type(kernel), type(kernel).covariance
    code = formula.__code__.co_code if isinstance(formula, FunctionType) else b""
    digest = hashlib.blake2b(code, digest_size=8).hexdigest()
    parts = [_formula(part) for part in vars(kernel).values() if isinstance(part, Kernel)]
    return f"{kind.__module__}.{kind.__qualname__} {digest} ({', '.join(parts)})"
