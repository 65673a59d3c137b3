"""A block of pivots is chosen with one copy of numbers from the device to the host."""

import pytest
import torch
from reads import Reads

from kernelcg.backends import Tiles
from kernelcg.kernels import Matern
from kernelcg.preconditioners.partial_cholesky import extended, greedy, no_pivots, random_pivots, weighted


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


X = torch.randn(400, 3, generator=seeded(1), dtype=torch.float64)
WEIGHTS = torch.rand(400, generator=seeded(2), dtype=torch.float64)
RULES = {
    "greedy": lambda: greedy,
    "random": lambda: random_pivots(seeded(3)),
    "weighted": lambda: weighted(random_pivots(seeded(3)), WEIGHTS),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("rank", [20, 150])
def test_a_block_of_pivots_reads_once(rule, rank):
    K, choose, blocks = Tiles().bind(Matern(1.0, 1.0, nu=1.5), X), RULES[rule](), []

    def counted(remainder):
        blocks.append(1)
        return choose(remainder)

    start = no_pivots(K)
    with Reads() as reads:
        found = extended(start, K, rank=rank, tolerance=0.0, choose=counted)
    assert found.rank == rank
    assert len(reads) == len(blocks) + 1, "and once to see whether there is anything left to do"
    assert rule == "greedy" or len(blocks) <= rank / 10 + 2


def test_weights_scale_what_is_drawn_and_nothing_else():
    """Equal weights change no pivot, whatever their size; points of weight zero are never chosen."""
    K = Tiles().bind(Matern(1.0, 1.0, nu=1.5), X)

    def pivots(weights):
        choose = weighted(random_pivots(seeded(4)), weights)
        return extended(no_pivots(K), K, rank=30, tolerance=0.0, choose=choose)

    plain = extended(no_pivots(K), K, rank=30, tolerance=0.0, choose=random_pivots(seeded(4)))
    assert torch.equal(pivots(torch.full((400,), 2.0**-20, dtype=torch.float64)).pivots, plain.pivots)
    found = pivots((torch.arange(400) < 100).double())
    assert int(found.pivots.max()) < 100
    torch.testing.assert_close((found.F @ found.F.T)[found.pivots], K.block()[found.pivots], rtol=0, atol=1e-9)
