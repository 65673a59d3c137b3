"""A fitted regressor as a model of BoTorch, so that its acquisition functions and optimisers can be used."""

from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from gpytorch.distributions import MultivariateNormal
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kernelcg.estimators import GPRegressor


class BoTorchModel(Model):
    """A fitted `GPRegressor` of one output, for BoTorch.

    Parameters
    ----------
    regressor : fitted to points X and values y; refit it, or call its ``update``, when there are more data, and make a
        new model of it
    """

    def __init__(self, regressor: GPRegressor):
        super().__init__()
        check_is_fitted(regressor)
        self.differentiable = regressor.differentiable()

    @property
    def num_outputs(self) -> int:
        """Return 1."""
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        """Return the shape of a batch of models: there is one."""
        return torch.Size([])

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        **_: Any,
    ) -> Posterior:
        """Return the joint distribution at X (..., q, d), of new observations if ``observation_noise``."""
        if isinstance(observation_noise, Tensor):
            raise TypeError("observation_noise must be True or False: the model has its own noise")
        mean = self.differentiable.mean(X)
        covariance = self.differentiable.covariance(X, noisy=observation_noise)
        found = GPyTorchPosterior(MultivariateNormal(mean.to(X), covariance.to(X)))
        return found if posterior_transform is None else posterior_transform(found)
