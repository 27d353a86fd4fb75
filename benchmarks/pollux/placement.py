"""The placement of jobs on nodes: large ones fill whole nodes, and small ones move aside for them.

A plan counts devices. The engine that starts the workers places them.
"""

from collections import Counter
from collections.abc import Mapping

from pollux.applications import MOST_NODES, NODE_DEVICES
from pollux.simulation import Nodes


def place_on_whole_nodes(before: Mapping[str, Nodes], sizes: Mapping[str, int]) -> dict[str, Nodes]:
    """Place jobs on as few nodes each as possible.

    A job keeps its devices if their number stays and they are on as few nodes as they can be, unless it is
    smaller than a node and makes room for another.

    Args:
        before: the devices that each job has; empty: none.
        sizes: the devices that each job shall have.
    """
    nodes = _Nodes(
        {name: held for name, held in before.items() if len(held) == sizes[name] and _is_compact(held)}
    )
    changed = sorted(
        (name for name, size in sizes.items() if name not in nodes.placed and size),
        key=lambda name: -sizes[name],
    )
    for name in changed:
        nodes.fill_whole_nodes(name, sizes[name] // NODE_DEVICES, Counter(before[name]))
    # Those that were moved aside are among them.
    rests = {name: sizes[name] - len(nodes.placed.get(name, ())) for name in sizes}
    for name in sorted(rests, key=lambda name: -rests[name]):
        nodes.place_rest(name, rests[name], Counter(before[name]))
    return {
        name: before[name] if sorted(found) == sorted(before[name]) else found
        for name, found in nodes.placed.items()
        if found
    }


def _is_compact(nodes: Nodes) -> bool:
    return len(set(nodes)) == -(-len(nodes) // NODE_DEVICES)


class _Nodes:
    """The nodes, and the jobs that are placed on them so far.

    Args:
        placed: the devices of each job.
    """

    def __init__(self, placed: dict[str, Nodes]) -> None:
        self.placed = placed
        used = Counter(node for nodes in placed.values() for node in nodes)
        self._free = [NODE_DEVICES - used[node] for node in range(MOST_NODES)]

    def fill_whole_nodes(self, name: str, count: int, present: Counter[int]) -> None:
        """Place a job on up to ``count`` whole nodes: those with the fewest devices of smaller jobs.

        Args:
            present: devices that the job has on each node.
        """
        small = Counter(node for nodes in self.placed.values() if len(nodes) < NODE_DEVICES for node in nodes)
        clear = (node for node in range(MOST_NODES) if self._free[node] + small[node] == NODE_DEVICES)
        for node in sorted(clear, key=lambda node: (small[node], -present[node]))[:count]:
            for other in [other for other, nodes in self.placed.items() if node in nodes]:
                self._remove(other)
            self._add(name, (node,) * NODE_DEVICES)

    def place_rest(self, name: str, devices: int, present: Counter[int]) -> None:
        """Place the devices of a job that fill no node: on one node, or else where most are free."""
        while devices:
            fitting = [node for node in range(MOST_NODES) if self._free[node] >= devices]
            if fitting or self._move_aside(devices):
                fitting = fitting or [node for node in range(MOST_NODES) if self._free[node] >= devices]
                node = min(fitting, key=lambda node: (self._free[node], -present[node]))
            else:
                node = max(range(MOST_NODES), key=lambda node: (self._free[node], present[node]))
            taken = min(devices, self._free[node])
            self._add(name, (node,) * taken)
            devices -= taken

    def _move_aside(self, devices: int) -> bool:
        """Make room for ``devices`` on one node by moving one job, if that is possible."""
        movable = sorted(
            (len(nodes), name, nodes[0])
            for name, nodes in self.placed.items()
            if len(nodes) < NODE_DEVICES and len(set(nodes)) == 1
        )
        for size, name, node in movable:
            places = [other for other in range(MOST_NODES) if other != node and self._free[other] >= size]
            if places and self._free[node] + size >= devices:
                self._remove(name)
                self._add(name, (min(places, key=lambda other: self._free[other]),) * size)
                return True
        return False

    def _add(self, name: str, nodes: Nodes) -> None:
        self.placed[name] = self.placed.get(name, ()) + nodes
        for node in nodes:
            self._free[node] -= 1

    def _remove(self, name: str) -> None:
        for node in self.placed.pop(name):
            self._free[node] += 1
