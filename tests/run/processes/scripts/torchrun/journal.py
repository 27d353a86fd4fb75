"""The journal of a script, which a test reads, and the files that make the script wait."""

import time
from collections.abc import Callable
from pathlib import Path


class Journal:
    """What the processes of a script append to one file.

    Args:
        folder: of the script.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def note(self, text: str) -> None:
        with (self._folder / "journal").open("a") as file:
            file.write(f"{text}\n")

    def wait_at(self, place: object, until: Callable[[], bool] = lambda: False) -> None:
        """Wait while the file ``hold-PLACE`` exists, until a test has done what it wants.

        Args:
            place: such as an epoch.
            until: returns whether the script has another reason to go on.
        """
        hold = self._folder / f"hold-{place}"
        if hold.exists():
            self.note(f"held {place}")
        while hold.exists() and not until():
            time.sleep(0.01)
