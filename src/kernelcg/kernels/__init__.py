"""Kernels: the formulas of covariance functions."""

from kernelcg.kernels.base import Kernel
from kernelcg.kernels.builders import Warped, Wave, additive, spectral_mixture
from kernelcg.kernels.composite import Constant, Linear, Product, Sum
from kernelcg.kernels.distances import distances, squared_distances
from kernelcg.kernels.laplacian import Laplacian
from kernelcg.kernels.mapped import GreatCircle, Mapped, OnColumns, OnSphere
from kernelcg.kernels.polynomial import Cosine, Polynomial, Power
from kernelcg.kernels.similarities import Hamming, MinMax, Tanimoto
from kernelcg.kernels.stationary import RBF, Matern, Periodic, RationalQuadratic, Stationary

__all__ = [
    "RBF",
    "Constant",
    "Cosine",
    "GreatCircle",
    "Hamming",
    "Kernel",
    "Laplacian",
    "Linear",
    "Mapped",
    "Matern",
    "MinMax",
    "OnColumns",
    "OnSphere",
    "Periodic",
    "Polynomial",
    "Power",
    "Product",
    "RationalQuadratic",
    "Stationary",
    "Sum",
    "Tanimoto",
    "Warped",
    "Wave",
    "additive",
    "distances",
    "spectral_mixture",
    "squared_distances",
]
