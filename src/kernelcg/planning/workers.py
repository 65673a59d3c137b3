"""The workers of a cluster in a plan: how many there are, and how fast each of them was measured to be."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import torch

from kernelcg.backends import Backend, dask, default
from kernelcg.planning.profile import Profile, current

TASK = 1e-3
"""Seconds of the scheduler for each task: 21 ms of processor time for driver and scheduler together, measured with 28
tasks of a product on one core of a server, rounded up."""

TOLD_FEATURES, TOLD_COLUMNS = 8, 16
"""Features and columns of the product by which speeds are told in words."""


@dataclass(frozen=True)
class Rates:
    """Workers that are equally fast, all their threads together, and what one of these threads takes."""

    workers: int
    threads: int
    profile: Profile


@dataclass(frozen=True)
class Workers:
    """Those who compute the products in the place of this process.

    Attributes
    ----------
    memory : bytes that all of them together may use
    rates : of each kind of them; none where nobody has answered
    """

    memory: int
    rates: tuple[Rates, ...] = ()

    @classmethod
    def of(cls, backend: Backend) -> Self | None:
        """Return the workers of a backend with the profile that each has stored or now measures; None if it has none.

        Measuring takes a worker a fraction of a second, once for each machine.
        """
        found = backend.each_worker(own_profile)
        if found is None:
            return None
        known = sorted(found, key=lambda one: one[1].to_json())
        kinds = [list(some) for _, some in groupby(known, key=lambda one: one[1])]
        rates = tuple(Rates(len(some), sum(threads for threads, _ in some), some[0][1]) for some in kinds)
        return cls(backend.memory_of_all_workers(), rates)

    def seconds(self, rows: int, work: Callable[[Profile], float]) -> float:
        """Return the seconds of work with K of so many rows that a single thread would do in ``work(profile)``."""
        blocks = dask.number_of_blocks(rows)
        tasks = blocks * (blocks + 3) / 2  # the tiles, and a sum for each block
        return 1 / sum(kind.threads / work(kind.profile) for kind in self.rates) + TASK * tasks

    def told(self, own: Profile) -> str:
        """Return how many they are and how much faster than this process, in words."""
        count, threads = (sum(getattr(kind, name) for kind in self.rates) for name in ("workers", "threads"))
        here = own.double(TOLD_FEATURES, TOLD_COLUMNS)
        speed = sum(kind.threads * here / kind.profile.double(TOLD_FEATURES, TOLD_COLUMNS) for kind in self.rates)
        return (
            f"{count} workers, {threads} threads, {self.memory / 1e9:.3g} GB, together {speed:.2g} times as fast as "
            "this process"
        )


def sharing(workers: Workers | None, rows: int) -> Workers | None:
    """Return the workers if they compute the products with K of so many rows; None if this process does."""
    return workers if workers is not None and workers.rates and rows > dask.LEAST_BLOCK else None


def own_profile() -> Profile:
    """Return the profile of the process that calls this, with its best backend: on a worker, that of the worker."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return current(default(device=device), device)
