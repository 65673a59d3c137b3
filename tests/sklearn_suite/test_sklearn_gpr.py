"""scikit-learn's own tests of its GaussianProcessRegressor, on the estimator of this library."""

import pytest
from shim import GaussianProcessRegressor
from sklearn.gaussian_process.tests import test_gpr as theirs

theirs.GaussianProcessRegressor = GaussianProcessRegressor
globals().update({name: value for name, value in vars(theirs).items() if name.startswith("test_")})

pytestmark = pytest.mark.filterwarnings("default")
