"""Backends: where the O(n²) operations run."""

from dataclasses import dataclass

import torch

from kernelcg.backends.base import Backend
from kernelcg.backends.counted import Counted, counted
from kernelcg.backends.dense import Dense, store
from kernelcg.backends.native import Native, levels, why_not
from kernelcg.backends.tiles import Tiles


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here, and why or why not."""

    usable: bool
    reason: str


def available() -> dict[str, Availability]:
    """Return every backend by name, with whether it can be used on this machine and the reason."""
    missing = why_not()
    usable = ", ".join(name for name, state in levels().items() if state == "usable")
    native = f"compiled C++ for RBF and Matérn kernels; instruction sets: {usable}" if missing is None else missing
    return {
        "native": Availability(missing is None, native),
        "tiles": Availability(True, f"torch {torch.__version__}, any kernel, any device"),
        "dense": Availability(True, "K stored by kernelcg.backends.store, where n² numbers fit the budget"),
    }


def default(memory: int | str | None = None, threads: int | None = None) -> Backend:
    """Return the fastest backend of this machine: native where it was compiled, torch tiles otherwise."""
    return Native(memory, threads) if why_not() is None else Tiles(memory)


__all__ = [
    "Availability",
    "Backend",
    "Counted",
    "Dense",
    "Native",
    "Tiles",
    "available",
    "counted",
    "default",
    "levels",
    "store",
]
