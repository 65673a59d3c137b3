"""Kernels: the formulas."""

from kernelcg.kernels.base import Kernel
from kernelcg.kernels.composite import Constant, Linear, Product, Sum
from kernelcg.kernels.distances import distances, squared_distances
from kernelcg.kernels.stationary import RBF, Matern, Periodic, RationalQuadratic, Stationary

__all__ = [
    "RBF",
    "Constant",
    "Kernel",
    "Linear",
    "Matern",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Stationary",
    "Sum",
    "distances",
    "squared_distances",
]
