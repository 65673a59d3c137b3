"""Estimators with scikit-learn's interface."""

from kernelcg.estimators.kernel_ridge import KernelRidge
from kernelcg.estimators.regressor import Bounds, GPRegressor
from kernelcg.estimators.saving import load

__all__ = ["Bounds", "GPRegressor", "KernelRidge", "load"]
