"""Options of estimators as users type them: NAME=VALUE."""

import ast
from typing import Any


def parsed_options(settings: list[str]) -> dict[str, Any]:
    """Return options by name: numbers, True, False, None and lists as Python has them, everything else as words."""
    found = {}
    for one in settings:
        name, sign, value = one.partition("=")
        if not sign or not name.strip():
            raise ValueError(f"--set takes NAME=VALUE, such as method=direct, not {one!r}")
        found[name.strip().replace("-", "_")] = _parsed(value.strip())
    return found


def _parsed(value: str) -> Any:
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
