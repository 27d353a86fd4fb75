"""The processes of one machine of a run, by the names of their logs."""

import re
from difflib import get_close_matches

from elastane.common.errors import BadInput
from elastane.run.nouns.membership import FIRST_NODE_WORD, NODE_NAME, NodeName
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import decode_event_line
from elastane.run.observability.tail import Tail

_NODE_LOG = re.compile(rf"(?:agent|coordinator|fork-server)-({NODE_NAME})")
_WORKER_LOG = re.compile(r"worker-(\d+)(?:-\d+)?")
_NODE_EVENT = re.compile(rf"node ({NODE_NAME})")


class NodeProcesses:
    """Tells which processes of a run are or were on one of its machines; reads new events as they come.

    Args:
        run_dir: of the run, or its mirror.
    """

    def __init__(self, run_dir: RunDir) -> None:
        self._tail = Tail(run_dir.files, run_dir.events)
        self._nodes: set[NodeName] = {""}
        self._workers: dict[str, NodeName] = {}

    def read_new_events(self) -> None:
        """Learn the machines of the workers that have started since the last call."""
        for line in self._tail.read_new_lines():
            event = decode_event_line(line)
            if event.kind.startswith("node.") and (named := _NODE_EVENT.fullmatch(event.who)):
                self._nodes.add(named[1])
            elif event.kind == "worker.started":
                node = event.detail.get("node") or ""
                # A number may be used again after a resume, on another machine.
                self._workers |= {str(worker): str(node) for worker in event.workers}

    def select(self, logged: list[str], node: NodeName) -> dict[str, str]:
        """Return the processes of one machine: what they are called on it, with the names of their logs."""
        found = {}
        for log in logged:
            if worker := _WORKER_LOG.fullmatch(log):
                if self._workers.get(worker[1]) == node:
                    found[log] = log
            elif (named := _NODE_LOG.fullmatch(log)) is None:
                if not node:
                    found[log] = log
            elif named[1] == node:
                found[log.removesuffix(f"-{node}")] = log
        return found

    def find_node(self, word: str, logged: list[str]) -> NodeName:
        """Return the name of a machine as users write it; ``first`` is the one without a name."""
        self._nodes |= {named[1] for log in logged if (named := _NODE_LOG.fullmatch(log))}
        node = "" if word == FIRST_NODE_WORD else word
        if node in self._nodes:
            return node
        known = [name or FIRST_NODE_WORD for name in sorted(self._nodes)]
        near = get_close_matches(word, known, n=1)
        raise BadInput(
            f"no machine {word!r} has taken part in this run",
            means=f"machines of the run: {', '.join(known)}",
            do=f"did you mean {near[0]}?" if near else "choose one of them",
        )
