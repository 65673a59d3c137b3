"""Ctrl-C, time limits and callbacks during a fit: real signals, in processes of their own."""

import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest

from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
from kernelcg.errors import ConvergenceWarning, StopRequested
from kernelcg.events import EventKind

PREAMBLE = """
import os, signal, sys, threading, warnings
import numpy as np
from kernelcg import GPClassifier, GPGeneralizedRegressor, GPRegressor, KernelRidge
from kernelcg.errors import ConvergenceWarning
from kernelcg.events import EventKind
warnings.simplefilter("always")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may ignore it
rng = np.random.default_rng(0)
X = rng.normal(size=(500, 2))
f = np.sin(2 * X[:, 0]) + X[:, 1]
y = f + 0.1 * rng.normal(size=500)
labels = np.digitize(f, [-0.5, 0.5])
def press_at(kind, *numbers):
    seen = []
    def listen(event):
        if event.kind is kind:
            seen.append(event)
            if len(seen) in numbers:
                os.kill(os.getpid(), signal.SIGINT)
    return listen
"""


def run(script):
    """Return what a process of its own writes, with the usual handling of Ctrl-C."""
    code = PREAMBLE + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


MODELS = {
    "regressor": ("GPRegressor()", "y"),
    "iterative": ("GPRegressor(method='iterative')", "y"),
    "ridge": ("KernelRidge(kernel='rbf', selection='gcv')", "y"),
    "two classes": ("GPClassifier(method='direct')", "f > 0"),
    "softmax": ("GPClassifier(method='iterative')", "labels"),
    "counts": ("GPGeneralizedRegressor(likelihood='poisson')", "np.round(np.exp(f))"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_first_interrupt_keeps_the_best_model_so_far(name):
    model, target = MODELS[name]
    out = run(f"""
        before = signal.getsignal(signal.SIGINT)
        with warnings.catch_warnings(record=True) as caught:
            model = {model}.fit(X[:300], ({target})[:300], callback=press_at(EventKind.STEP, 2))
        words = [str(one.message) for one in caught if issubclass(one.category, ConvergenceWarning)]
        print(len(words), "learning ended early: interrupted" in words[0])
        print(model.learning_.converged, model.learning_.reason, len(model.learning_.steps))
        print(np.allclose(model.learning_.gp.log_parameters(), model.learning_.steps[-1].log_parameters, atol=1e-12))
        print(len(model.predict(X)), signal.getsignal(signal.SIGINT) is before)
    """)
    first, second, third, fourth = out.splitlines()
    assert first == "1 True"
    assert second == "False interrupted 2"
    assert third == "True"
    assert fourth == "500 True"


def test_the_second_interrupt_raises_and_leaves_the_estimator_as_it_was():
    out = run("""
        model = GPRegressor(optimizer=None).fit(X, y)
        before = model.predict(X)
        model.set_params(optimizer="lbfgs")
        def twice(event):
            if event.kind is EventKind.STEP:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                for _ in range(1000):
                    pass
        try:
            model.fit(X, y, callback=twice)
        except KeyboardInterrupt:
            print("raised", (model.predict(X) == before).all(), model.learning_.steps)
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    """)
    assert out.splitlines() == ["raised True ()", "True"]


def test_interrupts_after_learning_raise_at_once():
    """An interrupt of learning is followed by conditioning, which another one ends."""
    out = run("""
        def listen(event):
            if event.kind is EventKind.STEP and event.payload.step.rows == 250:
                os.kill(os.getpid(), signal.SIGINT)
            learned.extend([event] if event.kind is EventKind.LEARNED else [])
            if learned and event.kind is EventKind.ITERATION:
                os.kill(os.getpid(), signal.SIGINT)
        for model in (GPRegressor(), GPRegressor(optimizer=None)):
            learned = [None] if model.optimizer is None else []
            try:
                model.fit(X, y, callback=listen)
            except KeyboardInterrupt:
                print("raised", hasattr(model, "posterior_"))
    """)
    assert out.splitlines() == ["raised False"] * 2


def test_all_machines_of_one_against_the_rest_end():
    out = run("""
        model = GPClassifier(likelihood="logit", method="direct")
        warnings.simplefilter("ignore")
        model.fit(X[:200], labels[:200], callback=press_at(EventKind.STEP, 3))
        print([(len(one.steps), one.reason) for one in model.learning_])
        print(model.predict(X).shape)
    """)
    assert out.splitlines() == ["[(3, 'interrupted'), (0, 'interrupted'), (0, 'interrupted')]", "(500,)"]


def test_an_interrupt_of_a_prediction_raises():
    out = run("""
        model = GPRegressor(optimizer=None, method="iterative").fit(X, y)
        try:
            model.predict(X, return_std=True, callback=press_at(EventKind.CHUNK, 1))
        except KeyboardInterrupt:
            print("raised")
    """)
    assert out == "raised\n"


def test_other_threads_install_nothing():
    out = run("""
        found = []
        def work():
            def look(event):
                found.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
            GPRegressor().fit(X, y, callback=look)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        print(all(found), len(found) > 5)
    """)
    assert out == "True True\n"


def test_an_ignored_signal_stays_ignored():
    out = run("""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        model = GPRegressor(max_iter=3).fit(X, y, callback=press_at(EventKind.STEP, 1))
        print(model.learning_.stopped, signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
    """)
    assert out == "False True\n"


# in this process


def data(n=300):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=n)


ESTIMATORS = {
    "regressor": (GPRegressor, lambda y: y),
    "ridge": (lambda **options: KernelRidge(kernel="rbf", selection="loo", **options), lambda y: y),
    "classifier": (GPClassifier, lambda y: y > 0),
    "generalized": (GPGeneralizedRegressor, lambda y: y),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_time_limit_ends_learning(name):
    make, target = ESTIMATORS[name]
    X, y = data()
    steps = []

    def dawdle(event):
        if event.kind is EventKind.STEP:
            steps.append(event.payload.step)
            time.sleep(0.3 * (len(steps) == 2))

    with pytest.warns(ConvergenceWarning, match=r"the time limit of 0\.25 s was reached") as caught:
        # the limit may come before the second step on a slow machine: never after it
        model = make(max_seconds=0.25).fit(X, target(y), callback=dawdle)
    assert len(caught) == 1
    assert not model.learning_.converged
    assert model.learning_.stopped
    assert model.learning_.reason == "the time limit of 0.25 s was reached"
    assert len(model.learning_.steps) <= 2
    assert np.isfinite(np.asarray(model.predict(X), dtype=float)).all()
    assert model.certificate_.met


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_generous_limit_changes_nothing(name):
    make, target = ESTIMATORS[name]
    X, y = data(100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        free, limited = (make(max_seconds=limit).fit(X, target(y)) for limit in (None, 1000))
    assert free.learning_.reason == limited.learning_.reason
    np.testing.assert_array_equal(free.predict(X), limited.predict(X))


@pytest.mark.parametrize("limit", [0, -1, "soon", float("inf"), True])
def test_limits_that_mean_nothing(limit):
    with pytest.raises(ValueError, match="max_seconds must be a positive number of seconds or None"):
        GPRegressor(max_seconds=limit).fit(*data(20))


def test_a_callback_ends_learning_and_sees_everything():
    X, y = data()
    seen = []

    def listen(event):
        seen.append(event)
        return event.kind is EventKind.STEP and len(event.payload.state.steps) == 3

    with pytest.warns(ConvergenceWarning, match="learning ended early: stopped by the callback") as caught:
        model = GPRegressor(method="iterative").fit(X, y, callback=listen)
    kinds = [event.kind for event in seen]
    assert kinds[0] is EventKind.PLAN
    assert seen[0].payload == replace(model.plan_, outcome=None)
    assert kinds[1] is EventKind.STAGE
    assert set(EventKind) - set(kinds) == {EventKind.CHUNK, EventKind.METHOD}
    assert kinds.count(EventKind.STEP) == 3 == len(model.learning_.steps)
    assert seen[kinds.index(EventKind.LEARNED)].payload is model.learning_
    assert seen[kinds.index(EventKind.WARNING)].payload == str(caught[0].message)
    assert seen[kinds.index(EventKind.END)].payload is model.certificate_
    seconds = [event.seconds for event in seen]
    assert seconds == sorted(seconds)


def test_a_callback_that_always_says_stop_still_gets_a_model():
    X, y = data()
    with pytest.warns(ConvergenceWarning, match="stopped by the callback"):
        model = GPRegressor(method="iterative").fit(X, y, callback=lambda event: True)
    assert model.learning_.steps == ()
    assert model.certificate_.met


def test_predictions_tell_of_chunks_and_can_be_ended():
    X, y = data()
    model = GPRegressor(method="iterative", preconditioner="low_rank_vecchia", optimizer=None).fit(X, y)
    seen = []
    model.predict(X, return_std=True, callback=seen.append)
    chunks = [event.payload for event in seen if event.kind is EventKind.CHUNK]
    done = [one.done for one in chunks]
    assert done == sorted(done)
    assert len(done) > 2
    assert done[-1] == 300
    assert {one.total for one in chunks} == {300}
    assert any(event.kind is EventKind.ITERATION for event in seen)
    with pytest.raises(StopRequested):
        model.predict(X, return_std=True, callback=lambda event: True)
    seen.clear()
    model.predict(X[:7], callback=seen.append)
    assert [(one.payload.done, one.payload.total) for one in seen] == [(7, 7)]
    seen.clear()
    model.update(X[:5] + 0.1, y[:5], callback=seen.append)
    assert any(event.kind is EventKind.ITERATION for event in seen)
    assert seen[-1].kind is EventKind.END


@pytest.mark.parametrize("classes", [2, 3])
def test_probabilities_tell_of_chunks(classes):
    X, y = data(120)
    model = GPClassifier(optimizer=None).fit(X, np.digitize(y, np.linspace(-0.5, 0.5, classes - 1)))
    seen = []
    model.predict_proba(X, callback=seen.append)
    assert seen[-1].payload.done == 120
    with pytest.raises(StopRequested):
        model.predict(X, callback=lambda event: True)


def test_handlers_are_restored_after_failures():
    X, y = data(50)
    before = signal.getsignal(signal.SIGINT)

    def fail(event):
        if event.kind is EventKind.STEP:
            raise ZeroDivisionError

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(ZeroDivisionError):
        GPRegressor().fit(X, y, callback=fail)
    assert signal.getsignal(signal.SIGINT) is before
