"""A small Ray for the driver of the engine: nodes, resources, and detached actors as real processes.

It has what `elastane.cluster.engines.ray.driver` uses of Ray, under the same names. The driver itself is the
real one, and so are the actors, their children, and the way in which they die. Run as a program, this file is

- ``head SOCKET``: the Ray cluster, which answers at a socket, one request after the other;
- ``actor NODE DRIVER``: one actor;
- ``driver SOCKET -I DRIVER ADDRESS NAMESPACE``: the driver, with this Ray in place of the real one.
"""

import os
import pickle
import runpy
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener, wait
from types import ModuleType, SimpleNamespace

NODES = {name: {"CPU": 4.0, "GPU": 2.0} for name in ("n1", "n2", "n3")}
VERSION = "2.60.0"


class ActorDiedError(Exception):
    pass


# -- the head ------------------------------------------------------------------------------------------------


class Head:
    """Answers requests; an actor that finds no room waits for it."""

    def __init__(self) -> None:
        self.resources = {name: dict(resources) for name, resources in NODES.items()}
        self.draining: dict[str, int] = {}
        self.actors: dict[tuple[str, str], SimpleNamespace] = {}
        self.dead: dict[tuple[str, str], str] = {}

    def list_actors(self, namespace: str) -> list[str]:
        self.bury()
        return [name for space, name in self.actors if space == namespace]

    def bury(self) -> None:
        """Note the actors that have ended."""
        for key, actor in list(self.actors.items()):
            if actor.process is not None and actor.process.poll() is not None:
                self.dead[key] = "The actor is dead because its process has died."
                del self.actors[key]

    def free(self) -> dict[str, dict[str, float]]:
        self.bury()
        found = {name: dict(resources) for name, resources in self.resources.items()}
        for actor in self.actors.values():
            for resource, amount in actor.holds.items() if actor.node in found else ():
                found[actor.node][resource] = found[actor.node].get(resource, 0.0) - amount
        # Ray leaves out what nothing is left of.
        return {name: {k: v for k, v in amounts.items() if v > 0} for name, amounts in found.items()}

    def nodes(self) -> list[dict]:
        return [
            {"NodeID": f"id-{name}", "NodeName": name, "Alive": True, "Resources": resources, "Labels": {}}
            for name, resources in self.resources.items()
        ]

    def make(self, key: tuple[str, str], holds: dict[str, float], driver: str, order: dict) -> None:
        if key not in self.actors:
            self.actors[key] = SimpleNamespace(holds=holds, order=order, driver=driver, process=None, node="")
        self.schedule()

    def schedule(self) -> None:
        for actor in self.actors.values():
            free = {name: amounts for name, amounts in self.free().items() if name not in self.draining}
            fits = [n for n in free if all(free[n].get(k, 0.0) >= v for k, v in actor.holds.items())]
            if actor.process is None and fits:
                actor.node = fits[0]
                words = [sys.executable, "-I", "-S", __file__, "actor", f"id-{actor.node}", actor.driver]
                actor.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                pickle.dump(actor.order, actor.process.stdin)
                actor.process.stdin.flush()

    def call(self, key: tuple[str, str], method: str) -> object:
        """Return ``(value,)``; None: the actor waits; a text: it has died."""
        self.schedule()
        if key in self.actors and self.actors[key].process is None:
            return None
        try:
            process = self.actors[key].process
            pickle.dump(method, process.stdin)
            process.stdin.flush()
            return (pickle.load(process.stdout),)  # noqa: S301 - our own actor
        except (KeyError, EOFError, BrokenPipeError):
            self.bury()
            return self.dead.get(key, "The actor is dead because nothing is known of it.")

    def kill(self, key: tuple[str, str], why: str = "The actor is dead because it was killed.") -> None:
        if (actor := self.actors.pop(key, None)) is not None:
            self.dead[key] = why
            if actor.process is not None:
                actor.process.kill()
                actor.process.communicate()
        self.schedule()

    def drain(self, node: str, deadline_ms: int) -> None:
        self.draining[node] = deadline_ms

    def fail(self, node: str) -> None:
        """Lose a node with its actors."""
        del self.resources[node]
        for key in [key for key, actor in self.actors.items() if actor.node == node]:
            self.kill(key, "The actor is dead because its node has died.")

    def ids(self) -> dict[str, int]:
        return {f"id-{name}": deadline_ms for name, deadline_ms in self.draining.items()}

    def serve(self, address: str) -> None:
        listener = Listener(address, "AF_UNIX")
        lines: list[Connection] = []
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            for ready in wait([listener._listener._socket, sys.stdin, *lines]):
                if ready is sys.stdin:
                    # The test has ended.
                    for key in list(self.actors):
                        self.kill(key)
                    return
                if ready not in lines:
                    lines.append(listener.accept())
                    continue
                try:
                    what, arguments = ready.recv()
                except (EOFError, ConnectionError):
                    lines.remove(ready)
                    continue
                answer = getattr(self, what)(*arguments)
                with suppress(ConnectionError):
                    ready.send(answer)


# -- an actor ------------------------------------------------------------------------------------------------


def run_actor(node: str, driver: str) -> None:
    """Make the actor of the driver, and call its methods."""
    context = SimpleNamespace(get_node_id=lambda: node)
    sys.modules["ray"] = SimpleNamespace(get_runtime_context=lambda: context)
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    actor = runpy.run_path(driver)["AgentActor"](pickle.load(source))  # noqa: S301 - from the head
    with suppress(EOFError):
        while True:
            pickle.dump(getattr(actor, pickle.load(source))(), sink)  # noqa: S301 - from the head
            sink.flush()


# -- the driver ----------------------------------------------------------------------------------------------


class Question:
    """A call of a method of an actor, with its answer once there is one."""

    def __init__(self, key: tuple[str, str], method: str) -> None:
        self.key, self.method, self.found = key, method, None


class SmallRay:
    """The functions of Ray that the driver uses."""

    def __init__(self, address: str) -> None:
        self._line = Client(address, "AF_UNIX")
        self._namespace = ""
        self.__version__ = VERSION
        self.exceptions = SimpleNamespace(ActorDiedError=ActorDiedError, RayError=Exception)
        self.util = SimpleNamespace(list_named_actors=lambda: self.ask("list_actors", self._namespace))
        self.state = SimpleNamespace(
            available_resources_per_node=lambda: {f"id-{k}": v for k, v in self.ask("free").items()},
            state=SimpleNamespace(get_draining_nodes=lambda: self.ask("ids")),
        )

    def ask(self, what: str, *arguments: object):
        self._line.send((what, arguments))
        return self._line.recv()

    def init(self, address: str, namespace: str, **options: object) -> None:
        if address != "auto":
            raise ConnectionError(f"there is no Ray at {address}")
        self._namespace = namespace

    def nodes(self):
        return self.ask("nodes")

    def remote(self, kind: type):
        return SimpleNamespace(options=self._make)

    def _make(self, *, name, num_cpus, num_gpus, memory, resources, **others):
        assert others == {"lifetime": "detached", "max_restarts": 0, "get_if_exists": True}
        holds = {"CPU": num_cpus, "GPU": num_gpus, "memory": memory or 0, **resources}
        holds = {name: amount for name, amount in holds.items() if amount}

        def make(order):
            self.ask("make", (self._namespace, name), holds, sys.argv[0], order)
            return self._handle(name)

        return SimpleNamespace(remote=make)

    def _handle(self, name: str):
        key = (self._namespace, name)
        return SimpleNamespace(
            key=key,
            poll=SimpleNamespace(remote=lambda: Question(key, "poll")),
            leave=SimpleNamespace(remote=lambda: Question(key, "leave")),
        )

    def get_actor(self, name: str):
        if name not in self.ask("list_actors", self._namespace):
            raise ValueError(name)
        return self._handle(name)

    def wait(self, refs, num_returns, timeout):
        for ref in refs:
            ref.found = self.ask("call", ref.key, ref.method)
        return [ref for ref in refs if ref.found is not None], [ref for ref in refs if ref.found is None]

    def get(self, ref):
        if isinstance(ref.found, str):
            raise ActorDiedError(ref.found)
        return ref.found[0]

    def kill(self, handle) -> None:
        self.ask("kill", handle.key)


def run_driver(address: str, driver: str, words: list[str]) -> None:
    """Run the driver with the small Ray."""
    ray = SmallRay(address)
    private = ModuleType("ray._private")
    private.state = ray.state
    sys.modules |= {"ray": ray, "ray._private": private}
    sys.argv = [driver, *words]
    runpy.run_path(driver, run_name="__main__")


def main() -> None:
    match sys.argv[1:]:
        case ["head", address]:
            Head().serve(address)
        case ["actor", node, driver]:
            run_actor(node, driver)
        case ["driver", address, "-I", driver, *words]:
            run_driver(address, driver, words)


if __name__ == "__main__":
    main()
