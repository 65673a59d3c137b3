"""One page about a model that opens offline, on a phone and in the dark."""

from kernelcg.reports.page import write_page

__all__ = ["write_page"]
