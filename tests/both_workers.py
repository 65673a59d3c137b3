"""What tests of clusters share: data, and two workers, also after a test has killed one."""

import numpy as np

ROWS = 300


def data(n=ROWS):
    """Return a smooth function of two features, with noise."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * generator.normal(size=n)


def await_both(client):
    """Wait until both workers are there, also the one that was killed."""
    client.wait_for_workers(2, timeout=300)
