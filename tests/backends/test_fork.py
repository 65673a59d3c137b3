"""A forked child can go on computing."""

import os
import subprocess
import sys

import pytest
from conftest import native_or_skip

SCRIPT = """
import os, torch
from kernelcg.backends import Native
from kernelcg.kernels import RBF
X = torch.randn(2000, 3, dtype=torch.float64)
before = Native(threads=2).bind(RBF(1.0), X).product(X)
child = os.fork()
if child == 0:
    same = torch.allclose(Native(threads=2).bind(RBF(1.0), X).product(X), before)
    os._exit(0 if same else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_product_after_a_fork_neither_hangs_nor_errs():
    native_or_skip()
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "0", done.stderr
