"""Likelihoods: p(y | f) and its derivatives."""

from kernelcg.likelihoods.base import ONE, Derivatives, Likelihood, ParameterDerivatives
from kernelcg.likelihoods.gaussian_student import Gaussian, StudentT
from kernelcg.likelihoods.log_link import Gamma, NegativeBinomial, Poisson
from kernelcg.likelihoods.logit import BernoulliLogit, Binomial
from kernelcg.likelihoods.probit import BernoulliProbit
from kernelcg.likelihoods.softmax import Softmax

__all__ = [
    "ONE",
    "BernoulliLogit",
    "BernoulliProbit",
    "Binomial",
    "Derivatives",
    "Gamma",
    "Gaussian",
    "Likelihood",
    "NegativeBinomial",
    "ParameterDerivatives",
    "Poisson",
    "Softmax",
    "StudentT",
]
