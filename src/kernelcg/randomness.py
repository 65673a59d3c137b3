"""Random draws. Always made on the CPU in float64, so that every device and precision sees the same numbers."""

import hashlib

import torch
from torch import Generator, Tensor


def seeded(seed: int) -> Generator:
    """Return a generator that starts from ``seed``."""
    return Generator().manual_seed(seed)


def child(generator: Generator, label: str) -> Generator:
    """Return an independent generator for one use, fixed by the parent's seed and the label alone.

    The parent's state is neither read nor advanced, so adding one use changes no other.
    """
    key = f"{generator.initial_seed()}/{label}".encode()
    return seeded(int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1)


def normal(rows: int, count: int, generator: Generator, like: Tensor) -> Tensor:
    """Return ``count`` columns of independent standard normal entries."""
    return torch.randn(rows, count, generator=generator, dtype=torch.float64).to(like)


def rademacher(rows: int, count: int, generator: Generator, like: Tensor) -> Tensor:
    """Return ``count`` probe columns with independent entries ±1, so that E[r rᵀ] = I."""
    signs = torch.randint(0, 2, (rows, count), generator=generator)
    return (2 * signs - 1).to(like)


def choose(population: int, count: int, generator: Generator) -> Tensor:
    """Return ``count`` distinct indices drawn uniformly from ``range(population)``."""
    if not 0 <= count <= population:
        raise ValueError(f"cannot choose {count} of {population} without repetition")
    return torch.randperm(population, generator=generator)[:count]
