"""What can be promised about computed numbers: rounding, residuals, certificates."""
