r"""Expectations under one-dimensional Gaussians, one for each row, by adaptive Gauss–Kronrod quadrature.

With f = m + σx the integrals are :math:`\int g(m + \sigma x)\, \varphi(x)\, dx`, the plug-in value at σ = 0. An
interval is halved until the 7-point and the 15-point rule agree, all rows at once: narrow peaks and steps cost a few
more rounds, not a finer grid everywhere.

References
----------
Piessens, de Doncker-Kapenga, Überhuber & Kahaner (1983), QUADPACK: the rule and its constants.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kernelcg.sums import sums_of_groups

Integrand = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

TOLERANCE = 1e-9
"""Largest disagreement of the two rules on one interval, relative to the integral."""
ROWS_AT_ONCE = 1024
MOST_INTERVALS = 100_000
MOST_ROUNDS = 60
NEGLIGIBLE = -60.0
"""Logarithm of an integrand, relative to its peak, that counts as nothing."""
SMALLEST = -1e300
TINY_DEVIATION = 1e-150

_HALF_NODES = (
    (0.991455371120812639206854697526329, 0.022935322010529224963732008058970, 0.0),
    (0.949107912342758524526189684047851, 0.063092092629978553290700663189204, 0.129484966168869693270611432679082),
    (0.864864423359769072789712788640926, 0.104790010322250183839876322541518, 0.0),
    (0.741531185599394439863864773280788, 0.140653259715525918745189590510238, 0.279705391489276667901467771423780),
    (0.586087235467691130294144691693013, 0.169004726639267902826583426598550, 0.0),
    (0.405845151377397166906606412076961, 0.190350578064785409913256402421014, 0.381830050505118944950369775488975),
    (0.207784955007898467600689403773245, 0.204432940075298892414161999234649, 0.0),
)
_CENTRE = (0.0, 0.209482141084727828012999174891714, 0.417959183673469387755102040816327)
NODES, KRONROD, GAUSS = torch.tensor(
    [*((-x, k, g) for x, k, g in _HALF_NODES), _CENTRE, *reversed(_HALF_NODES)], dtype=torch.float64
).unbind(1)


def expectation(function: Callable[[Tensor, Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """Return E g(f) for f ~ N(mean, variance), (n, k), to 1e-6, relative to max(1, |E g|).

    ``function(rows, f)`` returns g of those rows at f (a, q) as (a, q, k). Fine structure is expected around f = 0,
    as link functions have it, or a few standard deviations around the mean; elsewhere it must be wide enough to see.
    """

    def block(rows: Tensor, m: Tensor, sd: Tensor) -> Tensor:
        def integrand(owner: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return _log_normal(x), function(rows[owner], m[owner, None] + sd[owner, None] * x)

        breaks = _breaks(_geometric(3.0, 0, 3), m, sd)
        c, J = _integrate(integrand, breaks, torch.full_like(m, TOLERANCE), smallest=0.0)
        return c.exp()[:, None] * J

    return _by_blocks(block, mean, variance)


def log_expectation(
    log_function: Callable[[Tensor, Tensor], Tensor], mean: Tensor, variance: Tensor, *, log_concave: bool
) -> Tensor:
    """Return log E e^l(f) for f ~ N(mean, variance), (n,), to 1e-6 or to the rounding errors of l.

    ``log_function(rows, f)`` returns l of those rows at f (a, q) as (a, q). The integrand is sought where it peaks,
    around the mean and, unless l is log-concave and there is one peak only, where l alone peaks.
    """

    def block(rows: Tensor, m: Tensor, sd: Tensor) -> Tensor:
        everyone, breaks = torch.arange(len(m), device=m.device), _breaks(_geometric(3.0, 0, 20), m, sd)

        def log_value(owner: Tensor, x: Tensor) -> Tensor:
            return log_function(rows[owner], m[owner, None] + sd[owner, None] * x)

        def likelihood(x: Tensor) -> Tensor:
            return log_value(everyone, x)

        def product(x: Tensor) -> Tensor:
            return log_value(everyone, x) + _log_normal(x)

        peak, noise = _peak(product, breaks)
        top = likelihood(peak).nan_to_num(neginf=0.0)
        finer = [_around(product, peak)]
        if not log_concave:
            finer.append(_around(likelihood, _peak(likelihood, breaks)[0]))

        def integrand(owner: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return log_value(owner, x) - top[owner] + _log_normal(x), torch.ones_like(x)[..., None]

        breaks = torch.cat([breaks, *finer], 1)
        c, J = _integrate(integrand, breaks, noise.clamp_min(TOLERANCE), smallest=-math.inf)
        return top[:, 0] + c + J[:, 0].log()

    return _by_blocks(block, mean, variance)


def _by_blocks(block: Callable[[Tensor, Tensor, Tensor], Tensor], mean: Tensor, variance: Tensor) -> Tensor:
    """Return block(rows, m, σ) of all rows, in float64; a σ of zero becomes one that does not change m + σx."""
    m, sd = mean.to(torch.float64), variance.to(torch.float64).clamp_min(0).sqrt().clamp_min(TINY_DEVIATION)
    blocks = torch.arange(len(m), device=m.device).split(ROWS_AT_ONCE)
    return torch.cat([block(rows, m[rows], sd[rows]) for rows in blocks]).to(mean.dtype)


def _integrate(integrand: Integrand, breaks: Tensor, tolerance: Tensor, smallest: float) -> tuple[Tensor, Tensor]:
    """Return c (n,) and J (n, k) with ∫ e^(w(x)) v(x) dx = e^c J between the first and last of the breaks (n, b).

    ``integrand(owner, x)`` returns w (a, q) and v (a, q, k). Errors are judged relative to J, or to e^smallest where
    that is more.
    """
    nodes, kronrod, gauss = NODES.to(breaks), KRONROD.to(breaks), GAUSS.to(breaks)
    owner, left, right, columns = _worthwhile_intervals(integrand, breaks.sort(1).values)
    c, J = breaks.new_full((len(breaks),), SMALLEST), breaks.new_zeros(len(breaks), columns)
    for _ in range(MOST_ROUNDS):
        half = (right - left) / 2
        w, v = integrand(owner, (left + half)[:, None] + half[:, None] * nodes)
        highest = c.scatter_reduce(0, owner, w.amax(1), "amax")
        J, c = J * (c - highest).exp()[:, None], highest
        terms = (half[:, None] * (w - c[owner, None]).exp())[..., None] * v
        fine, coarse = torch.einsum("aqk,q->ak", terms, kronrod), torch.einsum("aqk,q->ak", terms, gauss)
        size = (J + sums_of_groups(fine, owner, len(J))).abs().maximum((smallest - c).exp()[:, None])
        poor = ((fine - coarse).abs() > (tolerance[:, None] * size)[owner]).any(1)
        J = J + sums_of_groups(fine[~poor], owner[~poor], len(J))
        owner, left, middle, right = (part[poor] for part in (owner, left, left + half, right))
        owner, left, right = torch.cat([owner, owner]), torch.cat([left, middle]), torch.cat([middle, right])
        if len(owner) == 0:
            return c, J
        if len(owner) > MOST_INTERVALS:
            break
    raise ArithmeticError(f"{len(owner.unique())} predictive integrals did not settle: p(y | f) must be smooth in f")


def _worthwhile_intervals(integrand: Integrand, breaks: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return owner, left and right of the intervals next to a break where the integrand counts, and k."""
    w, v = integrand(torch.arange(len(breaks), device=breaks.device), breaks)
    size = (w + v.abs().sum(-1).log1p()).nan_to_num(nan=-math.inf, neginf=-math.inf)
    peak = size.amax(1, keepdim=True)
    counts = (size > peak + NEGLIGIBLE) | (size == peak)
    owner, index = ((counts[:, 1:] | counts[:, :-1]) & (breaks.diff(dim=1) > 0)).nonzero(as_tuple=True)
    return owner, breaks[owner, index], breaks[owner, index + 1], v.shape[-1]


def _peak(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the place (n, 1) of the highest value of a function with one peak, and the noise (n,) there.

    x (n, b) are places to look at first; then 17 between the neighbours of the best, again and again. At last these
    are so close that their values differ by rounding errors only.
    """
    fractions = torch.linspace(0, 1, 17).to(x)
    for _ in range(16):
        values = function(x).nan_to_num(nan=-math.inf, neginf=-math.inf)
        place = x.gather(1, values.argmax(1, keepdim=True))
        left = torch.where(x < place, x, x.amin(1, keepdim=True)).amax(1, keepdim=True)
        right = torch.where(x > place, x, x.amax(1, keepdim=True)).amin(1, keepdim=True)
        x = left + (right - left) * fractions
    return place, (values.amax(1) - values.amin(1)).nan_to_num(nan=0.0)


def _around(function: Callable[[Tensor], Tensor], peak: Tensor) -> Tensor:
    """Return places x (n, b) geometrically around the peak; those where the function has hardly fallen become it."""
    x = peak + _geometric(4.0, -17, 2).to(peak)
    return torch.where(function(peak) - function(x) < 0.1, peak, x)


def _breaks(around_mean: Tensor, m: Tensor, sd: Tensor) -> Tensor:
    """Return places x (n, b), around 0 as given and, within their range, geometrically around f = 0."""
    around_zero = (_geometric(4.0, 0, 20).to(m) - m[:, None]) / sd[:, None]
    x = around_zero.clamp(around_mean[0].item(), around_mean[-1].item())
    return torch.cat([around_mean.to(m).expand(len(m), -1), x], 1)


def _geometric(ratio: float, first: int, last: int) -> Tensor:
    """Return 0 and ± ratio^j for first ≤ j ≤ last."""
    powers = ratio ** torch.arange(first, last + 1, dtype=torch.float64)
    return torch.cat([-powers.flip(0), torch.zeros(1, dtype=torch.float64), powers])


def _log_normal(x: Tensor) -> Tensor:
    return -0.5 * x.square() - 0.5 * math.log(2 * math.pi)
