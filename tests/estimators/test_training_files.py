"""States of learning in files: written at events, read in fresh processes, refused where they do not belong."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
from kernelcg.errors import ConvergenceWarning, ModelFileError, StateMismatch
from kernelcg.estimators import model_files
from kernelcg.estimators.training_files import load_state, save_state
from kernelcg.events import EventKind
from kernelcg.kernels import RBF, Matern

pytestmark = pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")

DATA = """
import numpy as np
rng = np.random.default_rng(0)
X = rng.normal(size=(450, 2))
f = np.sin(2 * X[:, 0]) + X[:, 1]
y = f + 0.1 * rng.normal(size=450)
targets = {"y": y, "two": f > 0, "three": np.digitize(f, [-0.5, 0.5]), "counts": np.round(np.exp(f))}
"""
here = {}
exec(DATA, here)
X, TARGETS = here["X"], here["targets"]

MODELS = {
    "lbfgs, direct": ("GPRegressor(method='direct')", "y"),
    "lbfgs, iterative": ("GPRegressor(method='iterative', n_restarts=1, max_iter=6)", "y"),
    "adagrad": ("GPRegressor(method='iterative', optimizer='adagrad', max_iter=6)", "y"),
    "adam": ("GPRegressor(optimizer='adam', max_iter=6)", "y"),
    "ridge": ("KernelRidge(kernel='rbf', selection='gcv', method='iterative')", "y"),
    "probit": ("GPClassifier(method='iterative')", "two"),
    "softmax": ("GPClassifier(method='iterative', max_iter=4)", "three"),
    "one against the rest": ("GPClassifier(likelihood='logit', max_iter=3)", "three"),
    "counts": ("GPGeneralizedRegressor(likelihood='poisson')", "counts"),
}

RESUME = """
import sys, warnings
import torch
from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
warnings.simplefilter("ignore")
torch.set_num_threads(THREADS)
for path in sys.argv[1:]:
    model = MODEL.fit(X, targets[TARGET], resume=path)
    learned = model.learning_ if isinstance(model.learning_, tuple) else (model.learning_,)
    theta = np.concatenate([one.gp.log_parameters().numpy() for one in learned])
    steps = [len(one.steps) for one in learned]
    np.savez(path + ".npz", theta=theta, steps=steps, predicted=model.predict(X))
"""


def made(model):
    return eval(model, globals())


def fitted(model, target, **options):
    """Return the fitted model and the states of its steps."""
    states = []

    def listen(event):
        if event.kind is EventKind.STEP:
            states.append(event.payload.state)

    return made(model).fit(X, TARGETS[target], callback=listen, **options), states


@pytest.mark.parametrize("name", MODELS)
def test_a_fresh_process_goes_on_to_the_same_model(name, tmp_path):
    expression, target = MODELS[name]
    model, states = fitted(expression, target)
    chosen = sorted({round(i) for i in np.linspace(0, len(states) - 1, 5)})
    assert len(chosen) >= 4
    paths = [str(tmp_path / f"{number}.state") for number in chosen]
    for number, path in zip(chosen, paths, strict=True):
        save_state(states[number], path)
    code = DATA + RESUME.replace("MODEL", expression).replace("TARGET", repr(target))
    code = code.replace("THREADS", str(torch.get_num_threads()))
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    learned = model.learning_ if isinstance(model.learning_, tuple) else (model.learning_,)
    theta = np.concatenate([one.gp.log_parameters().numpy() for one in learned])
    for path in paths:
        found = np.load(path + ".npz")
        np.testing.assert_array_equal(found["theta"], theta)
        np.testing.assert_array_equal(found["steps"], [len(one.steps) for one in learned])
        np.testing.assert_array_equal(found["predicted"], model.predict(X))


def one_state(expression="GPRegressor(method='iterative', max_iter=2)", target="y"):
    return fitted(expression, target)[1][-1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "learning.state"


def test_a_state_comes_back_as_it_was(path):
    state = one_state()
    save_state(state, path)
    again = load_state(path)
    assert again.origin == state.origin
    assert again.steps == state.steps or str(again.steps) == str(state.steps)  # NaN differs from itself
    for mine, its in zip(tensors_of(again), tensors_of(state), strict=True):
        assert torch.equal(mine, its)
    assert again.at.ascent.point.state.kept.how == state.at.ascent.point.state.kept.how
    assert path.stat().st_size < 8 * 450 * 40 + 20_000
    assert list(path.parent.iterdir()) == [path]


def tensors_of(state):
    ascent = state.at.ascent
    pairs = [part for pair in ascent.curvature.pairs for part in pair]
    trail = ascent.point.state
    return [*state.at.starts, ascent.point.theta, ascent.point.gradient, *pairs, trail.solutions, trail.chosen_at]


def test_a_state_in_memory_serves_as_well():
    model, states = fitted(*MODELS["lbfgs, direct"])
    again = made(MODELS["lbfgs, direct"][0]).fit(X, TARGETS["y"], resume=states[2])
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.learning_.steps[:3] == model.learning_.steps[:3]


def test_an_interrupted_fit_goes_on(path):
    """The last state before a stop leads to the model that the fit would have come to."""
    model, _ = fitted(*MODELS["lbfgs, iterative"])

    def stop(event):
        if event.kind is EventKind.STEP:
            save_state(event.payload.state, path)
            return len(event.payload.state.steps) == 4
        return None

    with pytest.warns(ConvergenceWarning, match="stopped by the callback"):
        made(MODELS["lbfgs, iterative"][0]).fit(X, TARGETS["y"], callback=stop)
    again = made(MODELS["lbfgs, iterative"][0]).fit(X, TARGETS["y"], resume=path)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))


# what is refused


def test_states_of_other_fits_are_refused():
    y, state = TARGETS["y"], one_state()

    def refused(why, model, X=X, y=y):
        with pytest.raises(StateMismatch, match=why):
            model.fit(X, y, resume=state)
        assert not [name for name in vars(model) if name.endswith("_")]

    base = {"method": "iterative", "max_iter": 2}
    refused("of 450 rows, not 449", GPRegressor(**base), X[:449], y[:449])
    refused("their numbers differ", GPRegressor(**base), X, y[::-1])
    refused("their numbers differ", GPRegressor(**base), X + 1e-12, y)
    refused("their numbers differ", GPRegressor(mean="zero", **base))
    refused("another process", GPRegressor(RBF(1.0), **base))
    refused("another process", GPRegressor(noise=0.7, **base))
    refused("optimizer was 'lbfgs', not 'adam'", GPRegressor(optimizer="adam", **base))
    refused("numerics.probes was 8, not 9", GPRegressor(probes=9, **base))
    refused("seed", GPRegressor(random_state=1, **base))
    refused("parts of the data was .* iterative", GPRegressor(method="direct"))
    refused("another plan: memory was", GPRegressor(memory="3GB", **base))
    refused("nothing is learned here", GPRegressor(optimizer=None))
    refused("nothing is learned here", KernelRidge(kernel="rbf"))
    refused("other data", KernelRidge(kernel="rbf", selection="gcv"))
    refused("other data", GPClassifier(), X, TARGETS["two"])
    refused("of none of the classes", GPClassifier(likelihood="probit"), X, TARGETS["three"])
    refused("other data", GPGeneralizedRegressor(), X, y)
    refused("other data", GPRegressor(), X, np.ones(450))


def test_files_that_hold_no_state(path):
    path.write_bytes(b"nonsense")
    with pytest.raises(ModelFileError, match="not a model file of kernelcg"):
        load_state(path)
    GPRegressor(optimizer=None).fit(X, TARGETS["y"]).save(path)
    with pytest.raises(ModelFileError, match="holds a 'GPRegressor', not a state of learning"):
        GPRegressor().fit(X, TARGETS["y"], resume=path)
    with pytest.raises(FileNotFoundError):
        GPRegressor().fit(X, TARGETS["y"], resume=path.with_name("missing"))
    with pytest.raises(TypeError, match="only a TrainingState"):
        save_state("state", path)


def test_damaged_bytes_are_found(path):
    save_state(one_state(), path)
    content = path.read_bytes()
    for place in np.linspace(8, len(content) - 1, 40).astype(int):
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        path.write_bytes(bytes(damaged))
        with pytest.raises(ModelFileError):
            load_state(path)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelFileError):
        load_state(path)


def rewritten(path, change):
    """Write the file anew, with a right checksum, after a change of its header and tensors."""
    with safe_open(path, framework="pt") as file:
        header, tensors = json.loads(file.metadata()["header"]), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    change(header, tensors)
    model_files.write(path, "TrainingState", header, tensors)


def at(header):
    return header["state"]["fields"]["at"]["fields"]


def ascent(header):
    return at(header)["ascent"]["fields"]


SPOILED = {
    "a newer layout": lambda header, tensors: header.update(version=2),
    "no state": lambda header, tensors: header.pop("state"),
    "an unknown record": lambda header, tensors: header["state"].update(record="Popen"),
    "another record": lambda header, tensors: header.update(state=header["state"]["fields"]["origin"]),
    "a missing tensor": lambda header, tensors: tensors.pop("state.at.ascent.point.theta"),
    "an unknown field": lambda header, tensors: at(header).update(more=1),
    "a missing field": lambda header, tensors: at(header).pop("starts"),
    "a word for a number": lambda header, tensors: at(header).update(stage="first"),
    "a number for a record": lambda header, tensors: at(header).update(curvature=1),
    "a word for a tensor": lambda header, tensors: ascent(header)["point"]["fields"].update(theta="zero"),
    "pairs of three": lambda header, tensors: at(header)["curvature"]["fields"].update(
        pairs={"tuple": [{"tuple": [{"tensor": "state.at.starts.0"}] * 3}]}
    ),
    "infinite parameters": lambda header, tensors: tensors["state.at.ascent.point.theta"].fill_(torch.inf),
    "NaN solutions": lambda header, tensors: tensors["state.at.ascent.point.state.solutions"].fill_(torch.nan),
    "too few parameters": lambda header, tensors: tensors.update(
        {"state.at.ascent.point.theta": tensors["state.at.ascent.point.theta"][1:].clone()}
    ),
    "another dtype": lambda header, tensors: tensors.update(
        {"state.at.ascent.point.gradient": tensors["state.at.ascent.point.gradient"].float()}
    ),
    "solutions of one dimension": lambda header, tensors: tensors.update(
        {"state.at.ascent.point.state.solutions": tensors["state.at.ascent.point.state.solutions"][:, 0].clone()}
    ),
    "pivots beyond the data": lambda header, tensors: tensors["state.at.ascent.point.state.pivots"].fill_(10**6),
    "steps of other lengths": lambda header, tensors: header["state"]["fields"]["steps"]["tuple"][0]["fields"].update(
        log_parameters={"tuple": [1.0]}
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_wrong_contents_are_refused(name, path):
    save_state(one_state(), path)
    rewritten(path, lambda header, tensors: None)
    load_state(path)
    rewritten(path, SPOILED[name])
    with pytest.raises(ModelFileError):
        load_state(path)


def test_what_no_event_gives_cannot_be_saved(path):
    state = one_state()
    ascent = state.at.ascent
    full = replace(ascent, point=replace(ascent.point, state=object()))
    with pytest.raises(TypeError, match="save the state of an event"):
        save_state(replace(state, at=replace(state.at, ascent=full)), path)
    assert not path.exists()


def test_a_kernel_of_ones_own_needs_no_class_in_the_file(path):
    class Mine(Matern):
        """A kernel of the user."""

    kernel = Mine([1.0, 1.0], 1.0)
    states = []
    GPRegressor(kernel, max_iter=4).fit(
        X[:100],
        TARGETS["y"][:100],
        callback=lambda event: states.append(event.payload.state) if event.kind is EventKind.STEP else None,
    )
    save_state(states[1], path)
    whole = [
        GPRegressor(kernel, max_iter=4).fit(X[:100], TARGETS["y"][:100], resume=resume).predict(X)
        for resume in (None, path)
    ]
    np.testing.assert_array_equal(*whole)
