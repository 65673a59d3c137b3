"""What is installed: the compiled module without an OpenMP runtime, its absence said once, versions that agree."""

import re
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
from conftest import native_or_skip

import kernelcg
from kernelcg import backends
from kernelcg.backends import registry

sys.path.insert(0, str(Path(__file__).parent))
from try_installed import try_installed

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_compiled_module_works_and_brings_no_openmp_runtime():
    native_or_skip()
    assert "baseline" in try_installed()


@pytest.fixture
def without_the_compiled_module(monkeypatch):
    monkeypatch.setattr("kernelcg.backends.native._native", None)
    monkeypatch.setattr("kernelcg.backends.native._import_error", "No module named 'kernelcg._native'", raising=False)
    registry._warn_once.cache_clear()
    yield
    registry._warn_once.cache_clear()


def test_without_the_compiled_module_one_warning_says_so(without_the_compiled_module):
    with pytest.warns(RuntimeWarning, match=r"compiled module is missing.*several times slower"):
        backend = backends.default()
    assert backend.name() == "tiles"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # also after the filters changed
        backends.default()
        model = kernelcg.GPRegressor(optimizer=None).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 0.0])
    assert model.plan_.backend == "tiles"
    assert "by tiles" in str(model.plan_)


def test_data_on_a_gpu_do_not_miss_the_compiled_module(without_the_compiled_module):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.default(device="cuda").name() == "tiles"


def test_the_fallback_version_is_that_of_the_changelog():
    newest = re.search(
        r"^## (\S+)( \(unreleased\))?", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    expected = newest[1] + (".dev0" if newest[2] else "")
    assert PROJECT["tool"]["setuptools_scm"]["fallback_version"] == expected
    assert f'"{expected}"' in (ROOT / "recipe" / "meta.yaml").read_text(encoding="utf-8")


def test_the_recipe_has_the_dependencies_of_the_package():
    recipe = (ROOT / "recipe" / "meta.yaml").read_text(encoding="utf-8")
    for requirement in PROJECT["project"]["dependencies"]:
        name, bound = requirement.split(">=")
        assert f"- {'pytorch' if name == 'torch' else name} >={bound}\n" in recipe


def test_a_wheel_for_others_must_not_lose_the_compiled_module():
    fallback = next(each for each in PROJECT["tool"]["scikit-build"]["overrides"] if each["if"].get("failed"))
    assert fallback["if"]["env"] == {"KERNELCG_REQUIRE_NATIVE": False}
    wheels = PROJECT["tool"]["cibuildwheel"]
    for settings in (wheels, wheels["macos"]):  # an environment of a platform replaces that of all
        assert settings["environment"]["KERNELCG_REQUIRE_NATIVE"] == "1"


def test_the_oldest_versions_are_the_lower_bounds():
    oldest = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").split()
    for requirement in PROJECT["project"]["dependencies"]:
        name, bound = requirement.split(">=")
        assert any(line.startswith(f"{name}=={bound}") for line in oldest)
