"""scikit-learn's own tests of its KernelRidge, from the installed package, on the estimator of this library."""

import pytest
from sklearn.tests import test_kernel_ridge as theirs

from kernelcg import KernelRidge

theirs.KernelRidge = KernelRidge
globals().update({name: value for name, value in vars(theirs).items() if name.startswith("test_")})

pytestmark = pytest.mark.filterwarnings("default")
