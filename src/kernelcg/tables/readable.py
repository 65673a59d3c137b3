"""Numbers as people write them."""


def readable(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, without powers of ten where people write none."""
    if not 1000 <= abs(value) < 1e7:
        return f"{value:.{digits}g}"
    return f"{float(f'{value:.{digits}g}'):,.0f}"
