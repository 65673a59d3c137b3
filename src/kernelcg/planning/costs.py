"""What things cost on a machine, in seconds, from its profile."""

import math
from dataclasses import dataclass

import torch

from kernelcg.planning.profile import TYPICAL, Profile
from kernelcg.planning.ranks import Sizes

EFFICIENCY = 0.6
"""Speed of factorisations of tall matrices relative to a product of square ones."""

NEIGHBOUR_SECONDS, PAIR_OPERATIONS = 5e-8, 500
"""One step down a k-d tree on a CPU; and operations of matrix products in whose time a pair is looked at in a pass over
all of them, which is what a GPU does: 250,000 points in eight dimensions took an H200 0.65 s."""

CHECKS = 1.2
"""Products of an iteration, with its share of the residuals recomputed in float64."""

VECTOR_PASSES = 60
"""Times that an iteration reads or writes a block of k columns."""

GRADIENT, OWN_GRADIENT = 2.0, 6.0
"""Products, or evaluations of a formula of one's own, that a gradient in all hyperparameters costs."""


@dataclass(frozen=True)
class KernelPrice:
    """What an entry of K costs: how many parts a backend fuses, and seconds of the other parts' own formulas.

    The seconds are a power of two, measured once on a machine: the same kernel has the same price next time.
    """

    fused: int = 1
    seconds: float = 0.0

    def entry(self, profile: Profile, d: int) -> float:
        """Return the seconds of an entry that is handed out, in float64."""
        return 2 * self.fused * profile.double(d, 0) + self.seconds

    def product(self, profile: Profile, n: int, d: int, k: int, precision: torch.dtype = torch.float64) -> float:
        """Return the seconds of a product of the n × n matrix with k columns."""
        own = 0.5 * self.seconds + k / profile.multiply if self.seconds else 0.0
        return n * n * (self.fused * profile.pair(precision)(d, k) + own)

    def gradient(self, profile: Profile, n: int, d: int, k: int) -> float:
        """Return the seconds of a gradient in all hyperparameters, from k pairs of columns."""
        own = OWN_GRADIENT * 0.5 * self.seconds + k / profile.multiply if self.seconds else 0.0
        return n * n * (self.fused * GRADIENT * profile.double(d, k) + own)


def stored_product(profile: Profile, n: int, k: int) -> float:
    """Return the seconds of a product with k columns of an n × n matrix that is stored."""
    return n * n * max(1 / profile.stream, k / profile.multiply)


@dataclass(frozen=True)
class Costs:
    """The time of everything that the automatic choice may do, for n rows and k columns."""

    n: int
    k: int
    product: float
    """Seconds of one product A V with k columns."""
    flops: float
    """Floating-point operations a second of matrix products in float64."""
    bandwidth: float
    """Numbers a second that a product of a tall matrix with k columns reads."""
    rounded: bool = False
    """Whether low-rank factors beside a diagonal are stored in float32."""
    local_speed: float | None = None
    """Multiply-adds a second where neighbourhoods are factored; None: as in other factorisations."""

    def low_rank(self, m: int, *, beside_neighbours: bool = False) -> float:
        """Return the time to make a randomly pivoted Cholesky factor of rank m and its Woodbury form.

        That form takes a QR factorisation, or the square of a factor in float32 and its Cholesky factor.
        """
        columns, n = self.product * m / self.n, self.n
        rounded = self.rounded and not beside_neighbours
        work = 3 * n * m**2 + m**3 / 3 if rounded else 5 * n * m**2
        return columns + work / (EFFICIENCY * self.flops)

    def local(self, m: int, q: int) -> float:
        """Return the time to find q neighbours of every point and to factor the remainder on them."""
        tree, pairs = NEIGHBOUR_SECONDS * self.n * q * math.log2(self.n + 1), PAIR_OPERATIONS * self.n**2 / self.flops
        search = min(tree, pairs)
        speed = EFFICIENCY * self.flops if self.local_speed is None else self.local_speed
        return search + self.n * (q + 1) ** 2 * (m + q) / speed

    def iteration(self, m: int, q: int) -> float:
        """Return the time of one iteration with a preconditioner of rank m and q neighbours."""
        sparse = 2 * self.n * (q + 1 if q else 0) * (2 + self.k / 4)
        vectors = VECTOR_PASSES * self.n * self.k
        return CHECKS * self.product + (2 * self.n * m + sparse + vectors) / self.bandwidth

    def direct(self) -> float:
        """Return the time of a Cholesky solve."""
        entries, factorisation = self.product, self.n**3 / 3 / (EFFICIENCY * self.flops)
        return 2 * entries + factorisation


@dataclass(frozen=True)
class Pricing:
    """What choices below a plan rest on: rates of a machine, the price of a kernel, and sizes. A part of the plan.

    Attributes
    ----------
    profile : rates of the machine
    price : of an entry of the kernel
    sizes : ranks and block sizes
    workers_memory : bytes of entries of K that the workers of a cluster may keep
    """

    profile: Profile = TYPICAL
    price: KernelPrice = KernelPrice()
    sizes: Sizes = Sizes()
    workers_memory: int = 0

    def costs(self, n: int, d: int, k: int, precision: torch.dtype, *, stored: bool = False) -> Costs:
        """Return what the automatic choice goes by for n rows, d features and k columns, K ``stored`` or computed."""
        profile = self.profile
        product = stored_product(profile, n, k) if stored else self.price.product(profile, n, d, k, precision)
        rounded = precision == torch.float32
        return Costs(n, k, product + profile.step, 2 * profile.multiply, profile.stream, rounded, profile.local)
