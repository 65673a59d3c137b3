"""All classes and functions that the packages of the library export."""

import inspect
import pkgutil
from importlib import import_module

import kernelcg
import kernelcg.progress

PACKAGES = [kernelcg, kernelcg.progress] + [
    import_module(f"kernelcg.{found.name}")
    for found in pkgutil.iter_modules(kernelcg.__path__)
    if found.ispkg and found.name != "cli"  # commands have a help of their own
]
EXPORTED = {
    f"{package.__name__}.{name}": getattr(package, name)
    for package in PACKAGES
    for name in package.__all__
    if inspect.isclass(getattr(package, name)) or inspect.isfunction(getattr(package, name))
}
