"""Products, entries and gradients of K(X, Y) by kernel matrices bound to one of X and Y, or to both."""

import torch

from kernelcg import backends
from kernelcg.operators import KernelPlusDiagonal


def product_of(backend, kernel, X, Y, V, precision=None):
    """Return K(X, Y) V: of the bound data among themselves if Y is X, of other points otherwise."""
    K = backend.bind(kernel, Y)
    return K.product(V, precision=precision) if Y is X else K.cross(X, V, precision=precision)


def block_of(backend, kernel, X, Y, precision=None):
    """Return K(X, Y)."""
    K = backend.bind(kernel, Y)
    return K.block(precision=precision) if Y is X else K.cross_block(X, precision=precision)


def gradient_of(backend, kernel, X, Y, left, right, precision=None, weights=None):
    """Return ∂/∂θ Σ_j left_jᵀ K(X, Y) right_j; other rows Y are columns of a larger matrix, with zeros below left."""
    if Y is X:
        return backend.bind(kernel, X).gradient(left, right, weights=weights, precision=precision)
    K = backend.bind(kernel, torch.cat([X, Y]))
    padded = torch.cat([left, left.new_zeros(len(Y), left.shape[1])])
    return K.gradient(padded, right, columns=slice(len(X), None), precision=precision)


def local_factors_of(backend, kernel, X, *arguments, **named):
    """Return the rows of a Vecchia factor."""
    return backend.bind(kernel, X).local_factors(*arguments, **named)


def bound_system(kernel, X, diagonal, scale=None, backend=None, product_dtype=None):
    """Return A = S K S + D for data in any form."""
    return KernelPlusDiagonal(backends.bind(kernel, X, backend), diagonal, scale, product_dtype)


class Storing:
    """Bind as ``base`` does, with the entries stored in a precision (None is that of the data)."""

    def __init__(self, base, precision=None):
        self.base, self.precision = base, precision

    def bind(self, kernel, X):
        return self.base.bind(kernel, X).stored(self.precision)

    def budget(self):
        return self.base.budget()


class OnGpu:
    """Bind on a GPU; what goes in and what comes out is on the CPU."""

    def __init__(self, base):
        self.base = base

    def bind(self, kernel, X):
        return _MatrixOnGpu(self.base.bind(kernel, X.cuda()), X)

    def budget(self):
        return self.base.budget()


class _MatrixOnGpu:
    """A kernel matrix on a GPU that takes and gives tensors on the CPU."""

    def __init__(self, K, X):
        self.K, self.X, self.kernel = K, X, K.kernel

    def with_kernel(self, kernel):
        return _MatrixOnGpu(self.K.with_kernel(kernel), self.X)

    def at(self, rows):
        return _MatrixOnGpu(self.K.at(_there(rows)), self.X[rows])

    def joined(self, points):
        return _MatrixOnGpu(self.K.joined(points.cuda()), torch.cat([self.X, points]))

    def __getattr__(self, name):
        def call(*arguments, **named):
            there = {key: _there(value) for key, value in named.items()}
            return getattr(self.K, name)(*map(_there, arguments), **there).cpu()

        return call


def _there(value):
    return value.cuda() if isinstance(value, torch.Tensor) else value
