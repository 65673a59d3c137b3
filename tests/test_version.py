"""The package says its version, and lists what it offers."""

import kernelcg
import kernelcg.inference
import kernelcg.preconditioners


def test_the_version_is_known_without_importing_estimators():
    assert isinstance(kernelcg.__version__, str)
    assert kernelcg.__version__


def test_classes_of_laplace_and_recipes_are_where_one_looks_for_them():
    assert issubclass(kernelcg.preconditioners.Nystrom, kernelcg.preconditioners.Preconditioner)
    for module in (kernelcg.inference, kernelcg.preconditioners):
        assert all(hasattr(module, name) for name in module.__all__)
    assert "LaplacePosterior" in kernelcg.inference.__all__
