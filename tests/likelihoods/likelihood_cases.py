"""What the tests of likelihoods run over."""

import torch
from hypothesis import strategies as st

from kernelcg.likelihoods import (
    BernoulliLogit,
    BernoulliProbit,
    Binomial,
    Gamma,
    Gaussian,
    NegativeBinomial,
    Poisson,
    StudentT,
)

TRIALS = 12

LIKELIHOODS = {
    "probit": BernoulliProbit(),
    "logit": BernoulliLogit(),
    "binomial": Binomial(),
    "poisson": Poisson(),
    "negative binomial": NegativeBinomial(),
    "nearly poisson": NegativeBinomial(1e-7),
    "very dispersed": NegativeBinomial(30.0),
    "gamma": Gamma(),
    "gamma 2.5": Gamma(2.5),
    "gamma 400": Gamma(400.0),
    "student": StudentT(),
    "cauchy": StudentT(2.0, 1.0),
    "nearly gaussian": StudentT(0.5, 1e6),
    "gaussian": Gaussian(),
}


def column(*values):
    return torch.tensor(values, dtype=torch.float64)


def observations(likelihood):
    """Return observations that the likelihood allows, and their exposures."""
    name = type(likelihood).__name__
    if name == "Binomial":
        return column(0.0, 1.0, 5.0, TRIALS), torch.full((4,), float(TRIALS), dtype=torch.float64)
    if name.startswith("Bernoulli"):
        return column(0.0, 1.0), column(1.0, 1.0)
    if name in ("Poisson", "NegativeBinomial"):
        return column(0.0, 1.0, 7.0, 250.0), column(0.5, 1.0, 3.0, 40.0)
    if name == "Gamma":
        return column(1e-3, 0.4, 1.0, 30.0), torch.ones(4, dtype=torch.float64)
    return column(-8.0, 0.0, 0.7, 1000.0), torch.ones(4, dtype=torch.float64)


names = st.sampled_from(list(LIKELIHOODS))
latents = st.floats(-12, 12)


def table(likelihood, latent_values):
    """Return y, f, exposure with every observation beside every latent value."""
    y, exposure = observations(likelihood)
    f = column(*latent_values)
    return (
        y.repeat_interleave(len(f)),
        f.repeat(len(y)),
        exposure.repeat_interleave(len(f)),
    )
