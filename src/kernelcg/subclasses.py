"""Finding the classes that extend a base class, so that a new one is known without being listed anywhere."""

from inspect import isabstract
from typing import Protocol, TypeVar


class Named(Protocol):
    """A class that says the name by which users choose it."""

    @classmethod
    def name(cls) -> str:
        """Return the name that users type."""
        ...


T = TypeVar("T", bound=Named)


def concrete_subclasses(base: type[T]) -> dict[str, type[T]]:
    """Return every class that extends ``base``, has been imported and is not abstract, sorted by name."""
    found: dict[str, type[T]] = {}
    queue = [base]
    while queue:
        cls = queue.pop()
        queue.extend(cls.__subclasses__())
        if not isabstract(cls):
            found[cls.name()] = cls
    return dict(sorted(found.items()))
