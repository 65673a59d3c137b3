"""Several outputs with noise of their own, and each observed at some of the rows only."""
