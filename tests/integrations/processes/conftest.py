"""A run in a process of its own."""

from tests.run.processes.conftest import attempts

__all__ = ["attempts"]
