"""Maximising a criterion over the hyperparameters, whatever the criterion is."""
