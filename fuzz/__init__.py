"""Generated problems for the estimators, judged against truths in higher precision.

`python -m fuzz --help` says how to run it; docs/trust.md says what it found.
"""
