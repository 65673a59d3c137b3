"""``fit(checkpoint=...)``: a file that is written on the way and gone on from, or refused with the reason."""

import os

import numpy as np
import pytest
from killed_fits import killed, whole

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
from kernelcg.errors import ConvergenceWarning, ModelFileError, StateMismatch
from kernelcg.estimators.training_files import load_state
from kernelcg.events import EventKind

rng = np.random.default_rng(0)
X = rng.normal(size=(60, 2))
f = np.sin(2 * X[:, 0]) + X[:, 1]
y = f + 0.1 * rng.normal(size=60)


def stopping_after(steps):
    return lambda event: event.kind is EventKind.STEP and len(event.payload.state.steps) == steps


@pytest.mark.parametrize(
    ("make", "target"),
    [
        (GPRegressor, y),
        (lambda: KernelRidge(kernel="rbf", selection="gcv"), y),
        (GPClassifier, f > 0),
        (lambda: GPGeneralizedRegressor(likelihood="poisson"), np.round(np.exp(f))),
    ],
)
@pytest.mark.filterwarnings("ignore::kernelcg.errors.ConvergenceWarning")
def test_the_same_call_goes_on_to_the_same_numbers(make, target, tmp_path):
    path = tmp_path / "run.kcg"
    undisturbed = make().fit(X, target)
    make().fit(X, target, checkpoint=path, callback=stopping_after(2))
    assert len(load_state(path).steps) == 2
    resumed = make().fit(X, target, checkpoint=str(path))
    np.testing.assert_array_equal(resumed.predict(X), undisturbed.predict(X))
    assert len(load_state(path).steps) == len(undisturbed.learning_.steps)
    again = make().fit(X, target, checkpoint=path)  # of a state at the end of learning
    np.testing.assert_array_equal(again.predict(X), undisturbed.predict(X))


def test_a_checkpoint_holds_the_step_at_which_a_callback_fails(tmp_path):
    def fail(event):
        if event.kind is EventKind.STEP:
            raise RuntimeError("the disk of the log is full")

    with pytest.raises(RuntimeError, match="the disk"):
        GPRegressor().fit(X, y, checkpoint=tmp_path / "run.kcg", callback=fail)
    assert len(load_state(tmp_path / "run.kcg").steps) == 1


def test_what_is_refused(tmp_path):
    path = tmp_path / "run.kcg"
    with pytest.warns(ConvergenceWarning, match="stopped by the callback"):
        GPRegressor().fit(X, y, checkpoint=path, callback=stopping_after(1))
    written = path.read_bytes()
    with pytest.raises(StateMismatch, match="other data: of 60 rows, not 59"):
        GPRegressor().fit(X[1:], y[1:], checkpoint=path)
    with pytest.raises(StateMismatch, match="seed"):
        GPRegressor(random_state=1).fit(X, y, checkpoint=path)
    with pytest.raises(ValueError, match="checkpoint or resume, not both"):
        GPRegressor().fit(X, y, checkpoint=path, resume=path)
    assert path.read_bytes() == written
    with pytest.raises(FileNotFoundError, match="no directory"):
        GPRegressor().fit(X, y, checkpoint=tmp_path / "none" / "run.kcg")
    path.write_text("a file of another kind")
    with pytest.raises(ModelFileError):
        GPRegressor().fit(X, y, checkpoint=path)
    assert path.read_text() == "a file of another kind"


def test_a_killed_fit_goes_on_to_the_same_numbers(tmp_path):
    """Two moments of one fit; ``make fuzz-kills`` tries twenty of each kind."""
    fit = "regression by PCG"
    truth, duration = whole(fit, tmp_path)
    for found, _ in killed(fit, [0.3 * duration, 0.8 * duration], tmp_path):
        assert found == truth


def full_disk_after(writes, monkeypatch):
    """Let files be written so many times; after that the disk is full."""
    count = iter(range(10**6))

    def replace(source, target):
        if next(count) >= writes:
            raise OSError(28, "No space left on device")
        os.rename(source, target)

    monkeypatch.setattr("kernelcg.estimators.model_files.os.replace", replace)


def test_a_disk_that_gets_full_does_not_end_learning(tmp_path, monkeypatch):
    """The state of the first step stays, there is a warning, and the numbers are those of an undisturbed fit."""
    full_disk_after(1, monkeypatch)
    with pytest.warns(UserWarning, match="keeps an earlier state of learning, since a newer one"):
        model = GPRegressor().fit(X, y, checkpoint=tmp_path / "run.kcg")
    np.testing.assert_array_equal(model.predict(X), GPRegressor().fit(X, y).predict(X))
    assert len(load_state(tmp_path / "run.kcg").steps) == 1
    assert [one.name for one in tmp_path.iterdir()] == ["run.kcg"]


def test_a_disk_that_is_full_from_the_start_ends_the_fit_and_names_the_file(tmp_path, monkeypatch):
    full_disk_after(0, monkeypatch)
    with pytest.raises(OSError, match="No space left on device") as failed:
        GPRegressor().fit(X, y, checkpoint=tmp_path / "run.kcg")
    assert failed.value.filename == str(tmp_path / "run.kcg")
    assert list(tmp_path.iterdir()) == []
