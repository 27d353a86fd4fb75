"""Fork real controllers from one process that has imported everything, so that one can be killed often.

Arguments: the command of the agents. Each line of standard input is a `Wanted`; the answer is a process id.
"""

import gc
import os
import signal
import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial

import msgspec

from elastane.cluster.controller import __main__ as controller
from elastane.cluster.controller import server
from elastane.cluster.controller.agents.engines import Engines
from elastane.cluster.controller.store.database import Store
from elastane.cluster.engines.local.engine import LocalEngine


class Wanted(msgspec.Struct):
    """A controller.

    Args:
        wish: its settings, as JSON.
        ready: file that it writes when it listens.
        log: file for its output.
        moments: number of moments before and after commits until it kills itself; 0: it does not.
        asks: number of moments before and after requests to engines for agents until it kills itself; 0: it
            does not.
    """

    wish: str
    ready: str
    log: str
    moments: int = 0
    asks: int = 0


def main() -> None:
    # The exit codes of the controllers are not needed.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer:
        wanted = msgspec.json.decode(line, type=Wanted)
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            become(wanted, own)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def become(wanted: Wanted, parent: int) -> None:
    """Run a controller that ends with its parent, in case the parent is killed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(wanted.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for standard, descriptor in enumerate((nothing, log, log)):
        os.dup2(descriptor, standard)
    ready = os.open(wanted.ready, os.O_WRONLY | os.O_CREAT)
    server.LocalEngine = partial(LocalEngine, agent=tuple(sys.argv[1:]))
    if wanted.moments:
        die_at_a_commit(wanted.moments)
    if wanted.asks:
        die_at_a_request(wanted.asks)
    reading, writing = os.pipe()
    os.write(writing, wanted.wish.encode())
    os.close(writing)
    sys.stdin = os.fdopen(reading)
    sys.argv = ["elastane.cluster.controller", f"--ready-fd={ready}", f"--with={parent}"]
    try:
        controller.main()
    finally:
        os._exit(1)


def count_down(moments: int) -> Callable[[], None]:
    """Return a function that kills this process when it is called for the last of some times."""
    left = moments

    def count() -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


def die_at_a_commit(moments: int) -> None:
    begin_write, count = Store.begin_write, count_down(moments)

    @contextmanager
    def begin_mortal_write(self):
        with begin_write(self) as tx:
            yield tx
            count()
        count()

    Store.begin_write = begin_mortal_write


def die_at_a_request(moments: int) -> None:
    """Die between the row of an agent and the request for it, or between the request and noting it."""
    start_agents, count = Engines.start_agents, count_down(moments)

    async def start_agents_or_die(self, name, asks):
        count()
        refusals = await start_agents(self, name, asks)
        count()
        return refusals

    Engines.start_agents = start_agents_or_die


if __name__ == "__main__":
    main()
