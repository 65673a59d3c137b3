"""Estimators with scikit-learn's interface."""

from kernelcg.estimators.regressor import Bounds, GPRegressor

__all__ = ["Bounds", "GPRegressor"]
