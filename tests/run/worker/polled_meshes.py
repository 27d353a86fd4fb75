"""Meshes that one thread polls until they have received enough."""

from collections.abc import Callable

from tests.waiting import wait_until


class PolledMeshes:
    """What both kinds of ends share: each says what it does to poll, and what it has received and lost."""

    received: list
    lost: list

    def poll(self) -> None:
        """Take what has arrived at each of the meshes."""
        raise NotImplementedError

    def poll_until(self, done: Callable[[], object]) -> None:
        """Poll the meshes until ``done`` holds."""
        wait_until(
            done,
            "these meshes have received enough",
            state=lambda: f"received {self.received}, lost {self.lost}",
            meanwhile=self.poll,
        )
