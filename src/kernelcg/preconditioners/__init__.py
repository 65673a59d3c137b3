"""Preconditioners. A module dropped into this folder is found without being listed."""

from importlib import import_module
from pkgutil import iter_modules

from kernelcg.preconditioners.base import Preconditioner, Prepared, available, catalogue, recipe
from kernelcg.preconditioners.shapes import (
    BlockDiagonal,
    Diagonal,
    InnerSolve,
    LowRankPlus,
    SparseInverse,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "BlockDiagonal",
    "Diagonal",
    "InnerSolve",
    "LowRankPlus",
    "Preconditioner",
    "Prepared",
    "SparseInverse",
    "available",
    "catalogue",
    "recipe",
]
