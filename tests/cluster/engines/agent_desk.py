"""The place where the agents of a test report, see `listening_agent`."""

import socket
import sys
from contextlib import suppress
from pathlib import Path

from tests.waiting import WAIT_S

COMMAND = (sys.executable, "-I", "-S", str(Path(__file__).with_name("listening_agent.py")))


class AgentLine:
    """The connection of an agent.

    Attributes:
        setup: the variable TEST_SETUP of its environment; ``-``: it has none.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(WAIT_S)
        self._connection = connection
        self._lines = connection.makefile("r")
        self.name, slots, pid, self.setup = self._lines.readline().split()
        self.slots, self.pid = int(slots), int(pid)

    def wait_for_line(self) -> str:
        """Return what the agent reports next, such as SIGTERM; empty: it has ended."""
        try:
            return self._lines.readline().strip()
        except ConnectionError:
            return ""

    def wait_for_end(self) -> None:
        while self.wait_for_line():
            pass

    def exit(self, code: int) -> None:
        """Let the agent end, and wait for that."""
        # It may have been killed meanwhile.
        with suppress(ConnectionError):
            self._connection.sendall(str(code).encode())
        self.wait_for_end()

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


class AgentDesk:
    """Listens for agents.

    Attributes:
        ticket: leads agents here.
        lines: those of all agents that have come, the first one first.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(WAIT_S)
        self.ticket = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.lines: list[AgentLine] = []

    def meet(self, agent: str) -> AgentLine:
        """Wait until an agent reports, and return its line."""
        while not (found := [line for line in self.lines if line.name == agent]):
            connection, _ = self._listener.accept()
            self.lines.append(AgentLine(connection))
        return found[0]

    def count_starts(self, agent: str) -> int:
        """Return how often an agent has begun, of those that have come already."""
        self._listener.setblocking(False)
        try:
            while True:
                connection, _ = self._listener.accept()
                connection.setblocking(True)
                self.lines.append(AgentLine(connection))
        except BlockingIOError:
            return sum(line.name == agent for line in self.lines)
        finally:
            self._listener.settimeout(WAIT_S)

    def close(self) -> None:
        """End all agents: they end when their lines do."""
        self._listener.close()
        for line in self.lines:
            line.close()
