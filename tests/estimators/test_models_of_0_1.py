"""Model files that version 0.1 wrote are read, and predict what they predicted then."""

import json
from pathlib import Path

import numpy as np
import pytest

import kernelcg

FOLDER = Path(__file__).parent / "models_of_0_1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
POINTS = np.array(EXPECTED.pop("points"))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_file_of_0_1_is_read(name):
    model, then = kernelcg.load(FOLDER / f"{name}.kcg"), EXPECTED[name]
    found = model.predict(POINTS)
    if found.dtype.kind in "fc":
        np.testing.assert_allclose(found, np.array(then["predict"]), rtol=1e-6, atol=1e-8)
    else:
        assert found.tolist() == then["predict"]
    if "predict_proba" in then:
        factors = model.calibration_ if isinstance(model.calibration_, tuple) else (model.calibration_,)
        assert not any(each.changes for each in factors), "they were not calibrated then"
        np.testing.assert_allclose(model.predict_proba(POINTS), np.array(then["predict_proba"]), rtol=2e-3, atol=1e-4)
    if "std" in then:
        np.testing.assert_allclose(model.predict(POINTS, return_std=True)[1], np.array(then["std"]), rtol=5e-3)
    assert model.plan_.rows == 30
    assert str(model.plan_)
