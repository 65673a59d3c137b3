"""Estimators: Gaussian processes behind fit and predict."""
