"""Kernels: the formulas."""

from kernelcg.kernels.base import Kernel
from kernelcg.kernels.composite import Constant, Linear, Product, Sum
from kernelcg.kernels.distances import distances, squared_distances
from kernelcg.kernels.laplacian import Laplacian
from kernelcg.kernels.polynomial import Cosine, Polynomial, Power
from kernelcg.kernels.stationary import RBF, Matern, Periodic, RationalQuadratic, Stationary

__all__ = [
    "RBF",
    "Constant",
    "Cosine",
    "Kernel",
    "Laplacian",
    "Linear",
    "Matern",
    "Periodic",
    "Polynomial",
    "Power",
    "Product",
    "RationalQuadratic",
    "Stationary",
    "Sum",
    "distances",
    "squared_distances",
]
