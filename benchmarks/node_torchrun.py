"""The contestant torchrun on two nodes: an elastic agent on each, of which the first has the rendezvous."""

from job import COLLECTIVE_TIMEOUT, Job
from node_networks import ADDRESSES, LINK, NodeNetworks
from node_programs import EACH, NodePrograms, TimeLimits
from torchrun import AGENT_ENVIRONMENT, QUICK_START, build_agent_command

TUNED = TimeLimits((QUICK_START, "keep_alive_interval=1"), {COLLECTIVE_TIMEOUT: "5"})


class NodeTorchrun(NodePrograms):
    """Elastic agents on nodes."""

    def __init__(self, job: Job, networks: NodeNetworks, limits: TimeLimits) -> None:
        super().__init__(job, networks)
        self._limits = limits
        self._start_agent(0)

    def join(self) -> None:
        self._start_agent(1)

    def _start_agent(self, node: int) -> None:
        # Without it an agent takes itself for the host only at the address of its host's name.
        conf = ",".join((f"is_host={node == 0}", *self._limits.options))
        command = build_agent_command(self.job, ADDRESSES[0], ADDRESSES[node], EACH, conf)
        self.start(node, command, GLOO_SOCKET_IFNAME=LINK, **AGENT_ENVIRONMENT, **self._limits.environment)
