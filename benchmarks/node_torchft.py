"""The contestant torchft on two nodes: each is a replica group, and the first has the lighthouse too."""

import subprocess
from pathlib import Path

from job import COLLECTIVE_TIMEOUT, Job
from node_networks import ADDRESSES, LINK, NodeNetworks
from node_programs import EACH, NodePrograms, TimeLimits

LIGHTHOUSE_PORT = 29_510
STORE_PORT = 29_511
INSTALL = (
    "not installed: `pip install torchft-nightly`, in its own environment with `--torchft its/bin/python`"
)
NAMED = 'hostname "$0" && exec "$@"'


TUNED = TimeLimits(("--join_timeout_ms=3000", "--heartbeat_timeout_ms=1000"), {COLLECTIVE_TIMEOUT: "5"})


def find_torchft_version(python: str) -> str:
    """Return the version of torchft that an interpreter can import; an empty text if it has none."""
    program = (
        "import torchft, importlib.metadata as m;"
        "print(*(f'{n} {m.version(n)}' for n in m.packages_distributions()['torchft']))"
    )
    done = subprocess.run([python, "-c", program], check=False, capture_output=True, text=True)
    return done.stdout.strip()


def require_torchft(python: str) -> str:
    """Return the version of torchft of an interpreter; an empty text if none is named.

    Raises:
        SystemExit: it has none.
    """
    version = find_torchft_version(python) if python else ""
    if python and not version:
        raise SystemExit(f"{python} cannot import torchft: {INSTALL}")
    return version


class NodeTorchft(NodePrograms):
    """A lighthouse on the first node, and replica groups of equal size.

    Args:
        job: the job to train.
        networks: the networks of the nodes.
        limits: the limits of time.
        python: an interpreter that has torchft.
        each: the workers of a replica group.
    """

    def __init__(
        self, job: Job, networks: NodeNetworks, limits: TimeLimits, python: str, *, each: int = EACH
    ) -> None:
        super().__init__(job, networks)
        self._limits = limits
        self._python, self._each = python, each
        lighthouse = Path(python).with_name("torchft_lighthouse")
        bind = f"--bind={ADDRESSES[0]}:{LIGHTHOUSE_PORT}"
        self.start(0, [str(lighthouse), "--min_replicas=1", bind, *limits.options])
        self._start_group(0)

    def join(self) -> None:
        self._start_group(1)

    def _start_group(self, node: int) -> None:
        address = ADDRESSES[node]
        # torchft advertises the host's name, so each node must have a name that leads to it.
        named = ["unshare", "--uts", "sh", "-c", NAMED, address]
        for rank in range(self._each):
            self.start(
                node,
                [*named, self._python, *self.job.build_script_command("torchft")],
                RANK=str(rank),
                WORLD_SIZE=str(self._each),
                REPLICA_GROUP_ID=str(node),
                MASTER_ADDR=address,
                MASTER_PORT=str(STORE_PORT),
                TORCHFT_LIGHTHOUSE=f"http://{ADDRESSES[0]}:{LIGHTHOUSE_PORT}",
                GLOO_SOCKET_IFNAME=LINK,
                **self._limits.environment,
            )
