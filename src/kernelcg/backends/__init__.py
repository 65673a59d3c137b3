"""Backends: kernel matrices bound to data, and where their O(n²) operations run.

A file dropped into this folder is found without being listed.
"""

from importlib import import_module
from pkgutil import iter_modules

from kernelcg.backends.base import Backend, KernelMatrix, Points
from kernelcg.backends.dask import Dask
from kernelcg.backends.native import Native, levels
from kernelcg.backends.registry import Availability, available, bind, default, named, passed_over
from kernelcg.backends.tiles import Tiles
from kernelcg.backends.work import Work

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Availability",
    "Backend",
    "Dask",
    "KernelMatrix",
    "Native",
    "Points",
    "Tiles",
    "Work",
    "available",
    "bind",
    "default",
    "levels",
    "named",
    "passed_over",
]
