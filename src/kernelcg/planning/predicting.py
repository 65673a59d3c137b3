"""What predictions of a planned model are expected to take."""

from dataclasses import dataclass

import torch

from kernelcg.planning.costs import Pricing
from kernelcg.planning.profile import Profile
from kernelcg.planning.workers import Workers

GROUP, NEIGHBOURHOOD = 32, 600
"""Points whose variances are computed together in the iterative method, and rows near them that take part."""

RANK, PASSES = 512, 3
"""Usual rank of the preconditioner that corrects such a variance, and how often its factor is read for a column."""

CLASS_ROWS, CLASS_PASSES = 1024, 2
"""Rows of the data and columns of the preconditioner, together, with which each pair of classes at a new point is
multiplied for each row, and what passes over the memory add: so many times as long."""

DIRECT_BLOCK, ITERATIVE_BLOCK = 512 * 6, 128 * 16
"""Numbers for each row of the data that are held at once where variances are computed."""


@dataclass(frozen=True)
class Expected:
    """Seconds, and bytes above what the process held."""

    seconds: float
    bytes: int


def expected_prediction(
    pricing: Pricing,
    rows: int,
    features: int,
    columns: int,
    budget: int,
    points: int,
    workers: Workers | None = None,
    *,
    direct: bool,
    std: bool,
    classes: int = 1,
) -> Expected:
    """Return what predictions of so many points take, the mean alone or with standard deviations.

    The mean is one product. In the direct method a variance is a triangular solve, n² / 2 multiply-adds; in the
    iterative one, points in groups share the rows near them, and the preconditioner at hand corrects what these leave.
    Products with K are made by the ``workers`` of a cluster, if there are any. Of several ``classes`` the covariance of
    the latent values at a point is computed: C columns of C numbers a row.
    """
    profile, price = pricing.profile, pricing.price

    def products(pairs: float, k: int, precision: torch.dtype = torch.float64) -> float:
        def work(rates: Profile) -> float:
            return (
                pairs * 2 * price.product(rates, 1, features, k, precision)
            )  # no symmetry: other points than the data

        return work(profile) if workers is None else workers.seconds(rows, work)

    seconds = profile.step + products(rows * points, columns * classes)
    held = 8 * points * (3 * features + 4 * columns * classes)
    if not std:
        return Expected(seconds, held + 8 * rows * columns * classes)
    if classes > 1:
        depth = 2 * rows if direct else CLASS_PASSES * CLASS_ROWS
        solves = points * rows * (price.entry(profile, features) + classes**2 * depth / profile.multiply)
        block = DIRECT_BLOCK * classes if direct else ITERATIVE_BLOCK
    elif direct:
        solves = points * rows * (price.entry(profile, features) + rows / 2 / profile.multiply)
        block = DIRECT_BLOCK
    else:
        near = min(NEIGHBOURHOOD, rows)
        trials = products(points * rows * near / GROUP, GROUP, torch.float32)
        corrections = price.entry(profile, features) + PASSES * min(RANK, rows) / profile.multiply
        solves = trials + points * (rows * corrections + near**3 / 6 / GROUP / profile.factorise)
        block = ITERATIVE_BLOCK
    return Expected(seconds + solves, held + min(8 * rows * block, budget))
