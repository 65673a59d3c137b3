"""Earlier neighbours and blocks of rows, against brute force."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from kernelcg.backends import neighbours as module
from kernelcg.backends.neighbours import earlier_neighbours
from kernelcg.preconditioners.blocks import bisected


def shuffled(n, seed):
    return torch.from_numpy(np.random.default_rng(seed).permutation(n))


def distances_of(points, rows, others):
    """Return the distance of each row to those named beside it, infinite where there is none."""
    points = np.asarray(points)
    found = np.linalg.norm(points[rows][:, None] - points[np.maximum(others, 0)], axis=2)
    return np.where(others < 0, np.inf, found)


def brute_force_distances(points, order, count):
    """Return the ``count`` smallest distances of every point to those before it, infinite where there are fewer."""
    points, order = np.asarray(points), np.asarray(order)
    result = np.full((len(points), count), np.inf)
    for rank, row in enumerate(order):
        nearest = np.sort(np.linalg.norm(points[order[:rank]] - points[row], axis=1))[:count]
        result[row, : len(nearest)] = nearest
    return result


def check_nearest(points, order, count, rtol=1e-9):
    """The neighbours are earlier, distinct, and at the smallest distances there are; ties may fall either way."""
    points = torch.as_tensor(points, dtype=torch.float64)
    found = earlier_neighbours(points, order, count)
    n, width = len(points), min(count, max(len(points) - 1, 0))
    assert found.shape == (n, width)
    assert found.dtype == torch.int64
    found, rank = found.numpy(), np.empty(n, dtype=int)
    rank[order.numpy()] = np.arange(n)
    here = found >= 0
    assert np.array_equal(here.sum(1), np.minimum(rank, width)), "as many as there are earlier points, up to q"
    assert (np.where(here, rank[np.maximum(found, 0)], -1) < rank[:, None]).all(), "all of them earlier"
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in found), "each of them once"
    truth = brute_force_distances(points, order, width)
    ours = np.sort(distances_of(points, np.arange(n), found), axis=1)
    scale = np.abs(points.numpy() - points.numpy().mean(0)).max(initial=1e-300)
    assert np.allclose(ours, truth, rtol=rtol, atol=rtol * scale)


STYLES = {
    "gaussian": lambda rng, n, d: rng.normal(size=(n, d)),
    "grid": lambda rng, n, d: rng.integers(0, 4, size=(n, d)),
    "pairs": lambda rng, n, d: rng.normal(size=(n, d))[np.arange(n) // 2],
    "identical": lambda rng, n, d: np.ones((n, d)),
    "clusters": lambda rng, n, d: rng.integers(0, 3, size=(n, 1)) + 1e-5 * rng.normal(size=(n, d)),
    "line": lambda rng, n, d: rng.normal(size=(n, 1)) * np.ones(d),
}


@example(n=1, d=1, count=3, style="gaussian", seed=0)
@example(n=2, d=1, count=1, style="identical", seed=0)
@given(st.integers(1, 60), st.integers(1, 4), st.integers(0, 70), st.sampled_from(list(STYLES)), st.integers(0, 99))
def test_a_few_points(n, d, count, style, seed):
    check_nearest(STYLES[style](np.random.default_rng(seed), n, d), shuffled(n, seed), count)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("n", "d", "count"), [(1400, 2, 10), (900, 20, 7), (800, 3, 700)])
def test_several_levels_by_tree_and_by_pairs(n, d, count, style):
    """Beyond 512 points the look-up is by trees up to 15 coordinates and by passes over all pairs above."""
    check_nearest(STYLES[style](np.random.default_rng(1), n, d), shuffled(n, 2), count)


def test_levels_and_tiles_change_nothing(monkeypatch):
    """Small levels and tiles walk through every branch on few points."""
    X = np.random.default_rng(3).normal(size=(300, 2))
    monkeypatch.setattr(module, "FIRST_LEVEL", 8)
    check_nearest(X, shuffled(300, 1), 12)
    monkeypatch.setattr(module, "TILE", 500)
    check_nearest(X, shuffled(300, 1), 12)
    monkeypatch.setattr(module, "TREE_DIMENSIONS", 0)
    check_nearest(X, shuffled(300, 1), 12)


@pytest.mark.parametrize("d", [1, 20])
def test_far_from_the_origin(d):
    """Years, coordinates in metres: what counts is the distance, not the position."""
    X = 1e6 + np.random.default_rng(4).uniform(size=(700, d))
    check_nearest(X, shuffled(700, 5), 5, rtol=1e-6)


def test_the_latest_points_count():
    """The nearest among all earlier points: on a line in sorted order it is the one just before."""
    n = 2000
    found = earlier_neighbours(torch.arange(n, dtype=torch.float64)[:, None], torch.arange(n), 2).numpy()
    assert np.array_equal(found[2:], np.stack([np.arange(1, n - 1), np.arange(n - 2)], 1))


def test_no_coordinates():
    """A constant kernel has none: every earlier point is as good as another."""
    found = earlier_neighbours(torch.zeros(5, 0, dtype=torch.float64), torch.arange(5), 2)
    assert ((found >= 0).sum(1) == torch.tensor([0, 1, 2, 2, 2])).all()


@given(st.integers(1, 60), st.integers(0, 3), st.integers(1, 70), st.sampled_from(list(STYLES)), st.integers(0, 99))
def test_blocks_cover_every_row_once(n, d, size, style, seed):
    points = torch.as_tensor(STYLES[style](np.random.default_rng(seed), n, d), dtype=torch.float64)
    blocks = bisected(points, size)
    assert np.array_equal(np.sort(np.concatenate(blocks)), np.arange(n))
    assert max(len(rows) for rows in blocks) <= size
    assert min(len(rows) for rows in blocks) >= min(n, (size + 1) // 2), "halving never goes further than needed"


def test_blocks_are_close_points():
    """Two distant clouds, mixed in the file, end in different blocks."""
    rng = np.random.default_rng(0)
    cloud = rng.permutation(np.arange(40) % 2)
    points = torch.from_numpy(rng.normal(size=(40, 2)) + 100.0 * cloud[:, None])
    for rows in bisected(points, 10):
        assert len(set(cloud[rows])) == 1


@pytest.mark.parametrize("count", [767, 768, 800, 899])
def test_more_neighbours_than_a_level_has_points(count):
    points = torch.randn(900, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = earlier_neighbours(points, torch.arange(900), count)
    assert found.shape == (900, count)
    assert torch.equal((found >= 0).sum(1), torch.arange(900).clamp_max(count))
