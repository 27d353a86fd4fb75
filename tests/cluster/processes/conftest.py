"""The reference run, for jobs that train."""

from tests.run.processes.conftest import play_reference

__all__ = ["play_reference"]
