"""The driver: a process of its own that asks Ray, for the engine of a controller. It decides nothing.

It runs as a file, in the Python of the Ray cluster, where Elastane need not be installed: it needs Ray and
the standard library only. It reads requests from standard input and writes answers to standard output, each a
line of JSON, until standard input ends. Actors go on without it.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

KNOWN_S = 0.5
"""How long to wait for actors that have answered before, in seconds."""
NEW_S = 0.2
"""How long to wait for the others: most of them wait for a machine."""
DEATH_S = 1.0
"""How long Ray may take to say why an actor has died."""
KEPT_S = 600.0
"""How long the end of an actor is told."""
MOST_ENDED = 5000
UNASKED_S = 60.0
"""How long an actor whose process has ended waits for a driver that asks. It holds its devices meanwhile."""
LONGEST_WORDS = 500
RAYS_OWN = ("RAY_", "PYTHON", "OMP_NUM_THREADS", "SPT_NOENV")
"""Variables, or their beginnings, that Ray sets for its own workers: they would change what an agent does."""
LAUNCH = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.stderr.write(f"{sys.argv[2]}: {error.strerror}\\n")
    sys.exit(127)
"""
"""Becomes the process of an agent, which the kernel kills when the actor dies (PR_SET_PDEATHSIG)."""


class AgentActor:
    """The actor of an agent. Its process is a child of the actor, and dies with it.

    Args:
        order: ``command``, ``ticket``, ``log``, ``holds``, ``grace_s`` and ``until_s``, see `actor_order`.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self._holds = order["holds"]
        self._leaving = False
        self._why = ""
        self._ended_s: float | None = None
        self._child: subprocess.Popen[bytes] | None = None
        words = [sys.executable, "-I", "-S", "-c", LAUNCH, str(os.getpid()), *order["command"]]
        try:
            with open(order["log"] or os.devnull, "ab") as output:  # noqa: PTH123 - nothing else is imported
                self._child = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    env={k: v for k, v in os.environ.items() if not k.startswith(RAYS_OWN)},
                    start_new_session=True,
                )
        except OSError as error:
            self._why = f"it cannot be started: {error}"
            self._ended_s = time.time()
        else:
            with suppress(BrokenPipeError):
                self._child.stdin.write(order["ticket"].encode() + b"\n")  # type: ignore[union-attr]
                self._child.stdin.close()  # type: ignore[union-attr]
        threading.Thread(target=self._watch, args=(order["grace_s"], order["until_s"]), daemon=True).start()

    def poll(self) -> dict[str, Any]:
        """Return how the process is doing, and where."""
        import ray

        code = None if self._child is None else self._child.poll()
        return {
            "node": ray.get_runtime_context().get_node_id(),
            "running": self._child is not None and code is None,
            "code": code,
            "why": self._why,
            "leaving": self._leaving,
            "ended_s": self._ended_s,
            "holds": self._holds,
        }

    def leave(self) -> None:
        """Ask the process to leave."""
        self._leaving = True
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def _watch(self, grace_s: float, until_s: float | None) -> None:
        """Wait for the end of the process, end it in time, and let the actor die if no driver asks for it."""
        if self._child is not None:
            try:
                if until_s is not None:
                    self._child.wait(max(0.0, until_s - grace_s - time.time()))
            except subprocess.TimeoutExpired:
                self.leave()
            try:
                self._child.wait(None if until_s is None else max(0.0, until_s - time.time()))
            except subprocess.TimeoutExpired:
                self._why = "its time was over"
                self._child.kill()
            self._child.wait()
            self._ended_s = time.time()
        time.sleep(UNASKED_S)
        os._exit(0)


class Driver:
    """Answers requests, with the module ray, which is connected to a cluster."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._actor = ray.remote(AgentActor)
        self._handles: dict[str, Any] = {}
        self._polls: dict[str, Any] = {}
        """The question to each actor that it has not answered yet."""
        self._answers: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, dict[str, Any]] = {}
        """Of actors that this driver has asked for: when, and what they hold."""
        self._ended: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def look(self) -> dict[str, Any]:
        """Return all actors of the namespace and all nodes."""
        # One that was killed is listed for a moment.
        living = [name for name in self._ray.util.list_named_actors() if name not in self._ended]
        nodes = self._list_nodes()
        for name in set(self._handles) - set(living):
            self._note_death(name)
        for name in living:
            if self._find(name) is not None and name not in self._polls:
                self._polls[name] = self._handles[name].poll.remote()
        for names, seconds in (
            ([name for name in self._polls if name in self._answers], KNOWN_S),
            ([name for name in self._polls if name not in self._answers], NEW_S),
        ):
            self._collect(names, seconds)
        now_s = time.time()
        told = {name: end for name, end in self._ended.items() if now_s - end["ended_s"] < KEPT_S}
        actors = [
            {"name": name} | self._asked.get(name, {}) | self._answers.get(name, {})
            for name in living
            if name not in self._ended
        ]
        return {"actors": actors + [{"name": name} | end for name, end in told.items()], "nodes": nodes}

    def start(self, orders: dict[str, dict[str, Any]]) -> dict[str, str]:
        """Make the actors that are not there, by name; return why some could not be made."""
        failed = {}
        for name, order in orders.items():
            if name in self._ended:
                continue
            rest = dict(order["holds"])
            options = {
                "num_cpus": rest.pop("CPU", 0),
                "num_gpus": rest.pop("GPU", 0),
                "memory": rest.pop("memory", 0) or None,
                "resources": rest | order["needs"],
            } | ({"label_selector": order["labels"]} if order["labels"] else {})
            try:
                self._handles[name] = self._actor.options(
                    name=name,
                    lifetime="detached",
                    max_restarts=0,
                    # The controller may ask again for an actor that an earlier driver has made.
                    get_if_exists=True,
                    **options,
                ).remote(order)
            except (ValueError, TypeError) as error:
                failed[name] = shorten(error)
            else:
                asked = {"asked_s": time.time(), "needs": order["needs"], "labels": order["labels"]}
                self._asked[name] = asked | {"holds": order["holds"]}
        return failed

    def end(self, leave: list[str], kill: list[str]) -> dict[str, str]:
        """Ask actors to leave, or kill them; return why that has failed for some."""
        failed = {}
        notices = {name: handle.leave.remote() for name in leave if (handle := self._find(name)) is not None}
        ready = self._wait(list(notices.values()), KNOWN_S)
        for name, notice in notices.items():
            if notice not in ready:
                failed[name] = "its actor has not answered yet"
        for name in kill:
            if (handle := self._find(name)) is not None:
                self._ray.kill(handle)
        return failed

    def _find(self, name: str) -> Any:
        """Return the handle of an actor; None: it does not exist."""
        if name not in self._handles:
            with suppress(ValueError):
                self._handles[name] = self._ray.get_actor(name)
        return self._handles.get(name)

    def _wait(self, refs: list[Any], seconds: float) -> set[Any]:
        """Return those that have an answer in time."""
        if not refs:
            return set()
        return set(self._ray.wait(refs, num_returns=len(refs), timeout=seconds)[0])

    def _collect(self, names: list[str], seconds: float) -> None:
        """Take the answers of actors that answer in time."""
        ready = self._wait([self._polls[name] for name in names], seconds)
        for name in [name for name in names if self._polls[name] in ready]:
            try:
                answer = self._ray.get(self._polls.pop(name))
            except self._ray.exceptions.ActorDiedError as error:
                self._note_end(name, {"why": shorten(error)})
            except self._ray.exceptions.RayError:
                # It cannot be reached now.
                continue
            else:
                self._answers[name] = answer
                if not answer["running"]:
                    # Its devices are free only when it is gone.
                    self._ray.kill(self._handles[name])
                    self._note_end(name, {})

    def _note_death(self, name: str) -> None:
        """Note the end of an actor that Ray does not list any more, with the reason that Ray gives."""
        why = ""
        poll = self._polls.get(name) or self._handles[name].poll.remote()
        if self._wait([poll], DEATH_S):
            try:
                answer = self._ray.get(poll)
            except self._ray.exceptions.RayError as error:
                why = shorten(error)
            else:
                self._answers[name] = answer
        self._note_end(name, {"why": why} if why else {})

    def _note_end(self, name: str, how: dict[str, Any]) -> None:
        answer = {"code": None, "holds": {}, "why": "", "node": ""} | self._answers.pop(name, {})
        answer |= how | {"running": False, "gone": True}
        answer["ended_s"] = answer.get("ended_s") or time.time()
        self._ended[name] = answer
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)
        for memory in (self._handles, self._polls, self._asked):
            memory.pop(name, None)

    def _list_nodes(self) -> list[dict[str, Any]]:
        from ray._private import state

        # Ray tells neither of them by its public interface: that has only the sum of all nodes.
        free = state.available_resources_per_node()
        draining = state.state.get_draining_nodes()
        return [
            {
                "id": node["NodeID"],
                "name": node.get("NodeName") or node.get("NodeManagerHostname") or "",
                "resources": node.get("Resources", {}),
                "free": free.get(node["NodeID"], {}),
                "labels": node.get("Labels", {}),
                "draining": node["NodeID"] in draining,
                "leaves_s": draining.get(node["NodeID"], 0) / 1000,
            }
            for node in self._ray.nodes()
            if node["Alive"]
        ]


def shorten(error: BaseException) -> str:
    """Return the words of an error of Ray: of several lines, those that say why an actor has died."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    said = [number for number, line in enumerate(lines) if line.startswith("The actor is dead")]
    return " ".join(lines[said[0] if said else 0 :])[:LONGEST_WORDS] or type(error).__name__


def read_requests(requests: "queue.SimpleQueue[bytes]", source: Any) -> None:
    """Pass on lines, and end the process with them, even while it waits for Ray."""
    for line in source:
        requests.put(line)
    os._exit(0)


def main() -> None:
    """Connect to Ray, and answer requests.

    The words of the command: the address of the Ray cluster, and the namespace of the actors.
    """
    address, namespace = sys.argv[1:]
    # Ray and its libraries write to standard output, and programs that they start read standard input.
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)

    def answer(number: int, what: dict[str, Any]) -> None:
        sink.write(json.dumps({"number": number} | what).encode() + b"\n")
        sink.flush()

    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=read_requests, args=(requests, source), daemon=True).start()
    try:
        import ray

        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # noqa: BLE001 - the engine tells it
        answer(0, {"away": shorten(error)})
        return
    answer(0, {"ok": {"ray": ray.__version__}})
    driver = Driver(ray)
    does: dict[str, Callable[..., Any]] = {"look": driver.look, "start": driver.start, "end": driver.end}
    while True:
        request = json.loads(requests.get())
        if time.monotonic() > request["until_s"]:
            # The engine does not wait any more, and asks for something else meanwhile.
            answer(request["number"], {"away": "the request came too late"})
            continue
        try:
            what = {"ok": does[request["do"]](**request["with"])}
        except Exception as error:  # noqa: BLE001 - Ray raises many kinds; the engine tells it
            what = {"away": shorten(error)}
        answer(request["number"], what)


if __name__ == "__main__":
    main()
