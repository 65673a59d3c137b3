"""Bounds on the errors of computed numbers: rounding, residuals, certificates."""
