"""Estimators with scikit-learn's interface."""

from kernelcg.estimators.answers import Bounds
from kernelcg.estimators.classifier import GPClassifier
from kernelcg.estimators.generalized import GPGeneralizedRegressor
from kernelcg.estimators.kernel_ridge import KernelRidge
from kernelcg.estimators.regressor import GPRegressor
from kernelcg.estimators.saving import load

__all__ = ["Bounds", "GPClassifier", "GPGeneralizedRegressor", "GPRegressor", "KernelRidge", "load"]
