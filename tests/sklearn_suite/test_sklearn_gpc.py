"""scikit-learn's own tests of its GaussianProcessClassifier, on the estimator of this library."""

import pytest
from shim import GaussianProcessClassifier
from sklearn.gaussian_process.tests import test_gpc as theirs

theirs.GaussianProcessClassifier = GaussianProcessClassifier
globals().update({name: value for name, value in vars(theirs).items() if name.startswith("test_")})

pytestmark = pytest.mark.filterwarnings("default")
