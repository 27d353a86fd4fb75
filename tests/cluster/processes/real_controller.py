"""A controller in a process of its own, which can be stopped and started again at the same address."""

import subprocess
import sys
from pathlib import Path
from typing import Self

import msgspec

from elastane.cluster.nouns.controller import ControllerReady, ControllerSettings
from tests.waiting import WAIT_S


class RealController:
    """A controller with a store in a directory.

    Args:
        root: the directory.

    Attributes:
        url: where it listens.
        token: of an operator.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.url = self.token = ""
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        port = int(self.url.rpartition(":")[2] or 0)
        settings = ControllerSettings(
            home=str(self._root / "controller"), store=f"sqlite:///{self._root}/store.db", port=port
        )
        with (self._root / "controller.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "elastane.cluster.controller", "--ready-fd=1"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self._process.stdin.write(msgspec.json.encode(settings))
        self._process.stdin.close()
        ready = msgspec.json.decode(self._process.stdout.readline(), type=ControllerReady)
        self.url, self.token = ready.url, ready.token or self.token

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(WAIT_S)
            self._process.stdout.close()
            self._process = None

    def kill(self) -> None:
        """Kill it in the midst of what it does."""
        self._process.kill()
        self._process.wait(WAIT_S)
        self._process.stdout.close()
        self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
