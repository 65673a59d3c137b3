"""What tests of clusters share: data, and two workers, also after a test has killed one."""

import os
import time

import numpy as np

ROWS = 300

PATIENCE = 600
"""Seconds for which tests wait for processes that start: seconds pass, unless the machine is very busy."""


def data(n=ROWS):
    """Return a smooth function of two features, with noise."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * generator.normal(size=n)


def await_both(client):
    """Wait until both workers answer: the scheduler may not have noticed yet that one was killed."""
    deadline = time.monotonic() + PATIENCE
    while len(client.run(os.getpid, on_error="ignore")) != 2:
        assert time.monotonic() < deadline
        client.wait_for_workers(2, timeout=PATIENCE)
