"""The codes that a command ends with."""

CERTIFIED, BAD_INPUT, NOT_CERTIFIED, INTERRUPTED = 0, 2, 3, 130
"""Done, and the numbers are certified; the input cannot be used; done, but not certified; interrupted by the user."""
