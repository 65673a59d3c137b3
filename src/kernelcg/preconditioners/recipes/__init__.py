"""The recipes, one file each. A file dropped into this folder is found without being listed."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
