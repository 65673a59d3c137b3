"""Learning that goes on from the state of an event takes the same steps, bit for bit."""

from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from inference.gaussian_truth import drawn

from kernelcg import backends
from kernelcg.errors import StateMismatch
from kernelcg.events import EventKind
from kernelcg.inference import GaussianProcess, Noise, Numerics, Objective, Regression, condition, learn
from kernelcg.inference.laplace.latent_model import LatentProcess, Observations
from kernelcg.inference.laplace.objective import LaplaceObjective
from kernelcg.inference.laplace.posterior import condition_laplace
from kernelcg.inference.learning.state import StagedState
from kernelcg.kernels import RBF, Matern
from kernelcg.likelihoods import BernoulliProbit, Poisson, Softmax
from kernelcg.planning import Pricing
from kernelcg.planning.ranks import Sizes
from kernelcg.randomness import seeded


def regression(n, kernel, noise, method, start, **options):
    X, Y = drawn(kernel, n, 2, noise)
    problem = Regression(torch.from_numpy(X), torch.from_numpy(Y), mean="constant")
    return Objective(problem, method=method, numerics=Numerics(4, **options)), start


def rough(n, lengthscale, noise, memory):
    """Return a problem in which neighbours pay, without the memory for a direct solve.

    Preconditioners, which is what these cases are about, may take all of it.
    """
    start = GaussianProcess(Matern(0.6 * lengthscale, 0.7, nu=0.5), Noise(3 * noise))
    objective, gp = regression(n, Matern(lengthscale, nu=0.5), noise, "iterative", start)
    generous = Pricing(sizes=Sizes(for_preconditioner=1.0))
    problem = replace(objective.problem, backend=backends.default(memory), pricing=generous)
    return replace(objective, problem=problem, learns_in_stages=False), gp


def latent(n, likelihood, method, probes=4, **options):
    X, Y = drawn(RBF(1.0, 4.0), n, 2, 0.01)
    f = torch.from_numpy(Y)[:, 0]
    y, classes = {
        "BernoulliProbit": ((f > 0).double(), 1),
        "Poisson": (f.exp().round(), 1),
        "Softmax": (torch.bucketize(f, torch.tensor([-1.0, 1.0], dtype=torch.float64)), 3),
    }[type(likelihood).__name__]
    problem = Observations(torch.from_numpy(X), y, classes=classes)
    return LaplaceObjective(problem, method, Numerics(probes, **options)), LatentProcess(RBF(2.0, 1.0), likelihood)


SMOOTH = GaussianProcess(RBF([1.0, 2.0], 0.5), Noise(0.1))


CASES = {
    "lbfgs, direct": lambda: (*regression(900, RBF(1.0), 0.05, "direct", SMOOTH), {}),
    "lbfgs, low rank": lambda: (*regression(900, RBF(1.0), 0.01, "iterative", SMOOTH), {}),
    "lbfgs, neighbours": lambda: (*rough(2000, 0.3, 1e-3, memory=20_000_000), {"max_steps": 8}),
    "lbfgs, part of a factor": lambda: (*rough(1500, 0.3, 1e-3, memory=9_000_000), {"max_steps": 8}),
    "lbfgs, frozen probes": lambda: (*rough(2000, 0.5, 1e-4, memory=20_000_000), {"max_steps": 8}),
    "lbfgs, a recipe": lambda: (*regression(500, RBF(1.0), 0.05, "iterative", SMOOTH, preconditioner="nystrom"), {}),
    "lbfgs, restarts": lambda: (*regression(450, RBF(1.0), 0.05, "iterative", SMOOTH), {"restarts": 2}),
    "lbfgs, gcv": lambda: (
        replace(
            (made := regression(500, RBF(1.0), 0.05, "iterative", SMOOTH))[0],
            criterion="gcv",
            problem=replace(made[0].problem, mean="zero"),
        ),
        SMOOTH,
        {"max_steps": 8},
    ),
    "adagrad, direct": lambda: (
        *regression(150, RBF(1.0), 0.05, "direct", SMOOTH),
        {"optimizer": "adagrad", "max_steps": 6},
    ),
    "adagrad, iterative": lambda: (
        *regression(900, RBF(1.0), 0.01, "iterative", SMOOTH, rademacher=True),
        {"optimizer": "adagrad", "max_steps": 8, "step_size": 0.2},
    ),
    "adam, iterative": lambda: (
        *regression(900, RBF(1.0), 0.01, "iterative", SMOOTH, rademacher=True),
        {"optimizer": "adam", "max_steps": 8},
    ),
    "probit, direct": lambda: (*latent(450, BernoulliProbit(), "direct"), {}),
    "probit, iterative": lambda: (*latent(500, BernoulliProbit(), "iterative", 16), {}),
    "probit, adagrad": lambda: (
        *latent(200, BernoulliProbit(), "iterative", rademacher=True),
        {"optimizer": "adagrad", "max_steps": 5},
    ),
    "poisson, direct": lambda: (*latent(200, Poisson(), "direct"), {}),
    "softmax, direct": lambda: (*latent(100, Softmax(), "direct"), {}),
    "softmax, iterative": lambda: (*latent(420, Softmax(), "iterative"), {"max_steps": 6}),
    "softmax, adam": lambda: (
        *latent(120, Softmax(), "iterative", rademacher=True),
        {"optimizer": "adam", "max_steps": 5},
    ),
}


def learned_with_states(objective, gp, options, **more):
    states = []

    def listen(event):
        if event.kind is EventKind.STEP:
            states.append(event.payload.state)
            assert event.payload.step is states[-1].steps[-1]

    return learn(objective, gp, generator=seeded(0), callback=listen, **options, **more), states


def telling(states):
    """Return the first step, one in the middle, the last of the first stage, the first of the next, the last."""
    rows = [state.steps[-1].rows for state in states]
    last = len(rows) - 1 - rows[::-1].index(rows[0])
    return sorted({0, len(states) // 2, last, min(last + 1, len(states) - 1), len(states) - 1})


def numbers(value):
    """Return how many numbers a record holds."""
    if isinstance(value, torch.Tensor):
        return value.numel()
    if is_dataclass(value):
        return sum(numbers(getattr(value, one.name)) for one in fields(value))
    return sum(map(numbers, value)) if isinstance(value, tuple) else 0


def without_times(steps):
    return [repr(replace(step, seconds=0.0)) + repr(step.log_parameters) for step in steps]


def predictions(objective, gp):
    X = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(10, 2)
    if isinstance(objective, Objective):
        posterior = condition(objective.problem, gp, generator=seeded(0))
        return posterior.predict(X, variance=True).variance
    return condition_laplace(objective.problem, gp).mean(X)


@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers_from_every_state(name):
    objective, gp, options = CASES[name]()
    whole, states = learned_with_states(objective, gp, options)
    assert len(states) > 3
    expected = predictions(objective, whole.gp)
    for number in telling(states):
        again, later = learned_with_states(objective, gp, options, resume=states[number])
        assert torch.equal(again.gp.log_parameters(), whole.gp.log_parameters())
        assert without_times(again.steps) == without_times(whole.steps)
        assert again.steps[: number + 1] == whole.steps[: number + 1]
        assert len(later) == len(states) - number - 1
        assert (again.reason, again.converged) == (whole.reason, whole.converged)
        assert (again.evaluations, again.failures) == (whole.evaluations, whole.failures)
        assert again.seconds >= whole.steps[number].seconds
    assert torch.equal(predictions(objective, again.gp), expected)


def kept_in(state):
    trail = state.at.ascent.point.state if isinstance(state.at, StagedState) else state.at.trail
    return None if trail is None else trail.kept


@pytest.mark.parametrize(
    ("name", "neighbours"),
    [
        ("lbfgs, low rank", 0),
        ("lbfgs, neighbours", 30),
        ("lbfgs, part of a factor", 30),
        ("lbfgs, frozen probes", 30),
        ("adagrad, iterative", 0),
    ],
)
def test_preconditioners_are_kept_by_their_construction(name, neighbours):
    """States hold no n × m factor, but the cases above do use kept preconditioners, of either kind."""
    objective, gp, options = CASES[name]()
    _, states = learned_with_states(objective, gp, options)
    kept = [one for one in map(kept_in, states) if one is not None and one.how is not None]
    assert kept
    assert all(one.prepared is None for one in kept)
    assert max(one.how.neighbours for one in kept) >= neighbours
    assert max(one.how.rank for one in kept) > 50
    n, columns = len(objective.problem), 4 + 2
    assert max(map(numbers, states)) < 4 * n * columns
    frozen = isinstance(states[-1].at, StagedState) and states[-1].at.ascent.point.state.frozen is not None
    assert frozen or "frozen" not in name


def test_a_state_is_not_changed_by_going_on():
    objective, gp, options = CASES["adam, iterative"]()
    _, states = learned_with_states(objective, gp, options)
    first = [learn(objective, gp, generator=seeded(0), resume=states[1], **options).gp.log_parameters() for _ in "ab"]
    assert torch.equal(*first)


def test_more_steps_may_be_asked_for():
    objective, gp, _ = CASES["lbfgs, direct"]()
    whole, _ = learned_with_states(objective, gp, {})
    few, states = learned_with_states(objective, gp, {"max_steps": 2})
    assert not few.converged
    first_stage = [state for state in states if state.steps[-1].rows == states[0].steps[-1].rows]
    again, _ = learned_with_states(objective, gp, {}, resume=first_stage[-1])
    assert torch.equal(again.gp.log_parameters(), whole.gp.log_parameters())


# what does not belong together


def state():
    objective, gp = regression(100, RBF(1.0), 0.05, "direct", SMOOTH)
    return objective, gp, learned_with_states(objective, gp, {"max_steps": 2})[1][-1]


def test_states_of_something_else_are_refused():
    objective, gp, known = state()
    problem = objective.problem

    def refused(why, objective=objective, gp=gp, **options):
        generator = options.pop("generator", seeded(0))
        with pytest.raises(StateMismatch, match=why):
            learn(objective, gp, generator=generator, resume=known, **options)

    refused("of 100 rows, not 99", replace(objective, problem=problem.subset(torch.arange(99))))
    moved = problem.Y.clone()
    moved[17] += 1e-13
    refused("their numbers differ", replace(objective, problem=replace(problem, Y=moved)))
    refused("their numbers differ", replace(objective, problem=replace(problem, mean="zero")))
    refused("another process", gp=GaussianProcess(Matern([1.0, 2.0], 0.5), Noise(0.1)))
    refused("another process", gp=GaussianProcess(RBF([1.0, 2.0], 0.51), Noise(0.1)))
    refused("another process", gp=GaussianProcess(gp.kernel.bounded(lengthscale=(0.1, 10.0)), gp.noise))
    refused("optimizer was 'lbfgs', not 'adam'", optimizer="adam")
    refused("restarts was 0, not 1", restarts=1)
    refused("seed was 0, not 1", generator=seeded(1))
    refused("numerics.probes was 4, not 5", replace(objective, numerics=Numerics(5)))
    refused("method was 'direct', not 'iterative'", replace(objective, method="iterative"))
    refused("nothing is learned here", optimizer=None)
