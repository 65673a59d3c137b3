import numpy as np
import pytest
import torch

from kernelcg.randomness import child, choose, normal, rademacher, seeded

LIKE = torch.zeros((), dtype=torch.float64)


def draws(generator):
    return torch.rand(8, generator=generator, dtype=torch.float64).tolist()


def test_equal_seeds_draw_alike_and_different_ones_differ():
    assert draws(seeded(3)) == draws(seeded(3))
    assert draws(seeded(3)) != draws(seeded(4))


def test_a_child_depends_on_the_seed_and_the_label_alone():
    parent, used = seeded(3), seeded(3)
    draws(used)
    assert draws(child(parent, "probes")) == draws(child(used, "probes"))
    assert draws(parent) == draws(seeded(3)), "the parent was advanced"


def test_children_differ_from_each_other_and_from_their_parents():
    family = [
        seeded(3),
        child(seeded(3), "probes"),
        child(seeded(3), "restarts"),
        child(seeded(4), "probes"),
        child(child(seeded(3), "probes"), "probes"),
        child(seeded(3), ""),
    ]
    assert len({tuple(draws(member)) for member in family}) == len(family)


def test_seed_and_label_do_not_run_into_each_other():
    assert draws(child(seeded(1), "2/a")) != draws(child(child(seeded(1), "2"), "a"))
    assert draws(child(seeded(12), "a")) != draws(child(seeded(1), "2a"))


def test_global_state_is_neither_read_nor_advanced():
    before = torch.get_rng_state()
    for draw in (normal, rademacher):
        draw(5, 2, seeded(0), LIKE)
    choose(10, 3, seeded(0))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("draw", [normal, rademacher])
def test_every_precision_sees_the_same_numbers(draw):
    exact = draw(50, 3, seeded(7), LIKE)
    rounded = draw(50, 3, seeded(7), LIKE.float())
    assert exact.shape == (50, 3)
    assert (exact.dtype, rounded.dtype) == (torch.float64, torch.float32)
    assert torch.equal(exact.float(), rounded)


def test_normal_entries_have_mean_0_variance_1_and_are_independent():
    n = 100_000
    Z = normal(n, 2, seeded(1), LIKE).numpy()
    assert np.all(np.abs(Z.mean(0)) < 4 / np.sqrt(n))
    assert np.all(np.abs(Z.var(0) - 1) < 4 * np.sqrt(2 / n))
    assert abs(np.mean(Z[:, 0] * Z[:, 1])) < 4 / np.sqrt(n)


def test_rademacher_entries_are_signs_with_covariance_identity():
    n = 100_000
    Z = rademacher(n, 2, seeded(1), LIKE).numpy()
    assert set(np.unique(Z)) == {-1.0, 1.0}
    assert np.all(np.abs(Z.mean(0)) < 4 / np.sqrt(n))
    assert abs(np.mean(Z[:, 0] * Z[:, 1])) < 4 / np.sqrt(n)


def test_choices_are_distinct_in_range_and_uniform():
    counts = np.zeros(6)
    for seed in range(3000):
        chosen = choose(6, 2, seeded(seed)).tolist()
        assert len(set(chosen)) == 2
        counts[chosen] += 1
    assert np.all(np.abs(counts - 1000) < 4 * np.sqrt(1000 * (1 - 1 / 3)))


def test_all_and_none_can_be_chosen():
    assert sorted(choose(5, 5, seeded(0)).tolist()) == [0, 1, 2, 3, 4]
    assert choose(5, 0, seeded(0)).tolist() == []


def test_more_than_there_are_cannot_be_chosen():
    with pytest.raises(ValueError):
        choose(5, 6, seeded(0))
