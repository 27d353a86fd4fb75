"""The address of a live run's coordinator, and the run's secret: two files of a run directory."""

import hashlib
import os
import re
from contextlib import suppress
from typing import Annotated

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.untrusted_data import Decoder, Malformed, read_at_most
from elastane.run.nouns.machine_address import MachineAddress, find_network_id
from elastane.run.nouns.membership import Host, NodeName
from elastane.run.nouns.rundir import RunDir

LARGEST_ENDPOINT_BYTES = 4096
"""The size limit of either file."""
_SECRET = re.compile(rb"[!-~]{1,256}")


class AnotherAttempt(ConnectionError):
    """Another attempt of the run has begun than that of this process, which must not take part in it.

    A process may outlive its attempt by some seconds, and the next one begins with another state.

    Args:
        own: how often the run had been resumed when the attempt of this process began.
        present: how often it had been resumed when the attempt of the coordinator began.

    Attributes:
        is_later: the other attempt is the later one; otherwise that of this process begins just now.
    """

    def __init__(self, own: int, present: int) -> None:
        self.is_later = present > own
        ended = "has ended" if self.is_later else "has not begun"
        super().__init__(f"attempt {own + 1} of the run {ended}: the coordinator is of attempt {present + 1}")


class CoordinatorEndpoint(msgspec.Struct, frozen=True):
    """Host and TCP port of the coordinator.

    Args:
        host: numeric address, or a name.
        certificate: that of the run as PEM, if other machines take part; empty: the connection stays on this
            machine and is not encrypted.
        term: number of the coordinator's term; 0: not known yet.
        listens_at: its own address if ``host`` is translated to it; processes beside it connect there.
        network_id: identifies the network of its machine, see `find_network_id`; empty: not known.
        attempt: how often the run had been resumed when its attempt began.
        kept: a controller keeps it for machines that share no directory, until their end.
    """

    host: Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.:-]{1,253}\Z")]
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    certificate: str = ""
    term: Annotated[int, msgspec.Meta(ge=0)] = 0
    node: NodeName = ""
    listens_at: Host = ""
    network_id: Annotated[str, msgspec.Meta(max_length=128)] = ""
    attempt: Annotated[int, msgspec.Meta(ge=0)] = 0
    kept: bool = False

    @property
    def url(self) -> str:
        """The URL for a WebSocket connection."""
        scheme = "wss" if self.certificate else "ws"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"


decode_endpoint: Decoder[CoordinatorEndpoint] = Decoder(
    CoordinatorEndpoint, at_most_bytes=LARGEST_ENDPOINT_BYTES
)


def read_endpoint(run_dir: RunDir) -> CoordinatorEndpoint:
    """Return the host and the port of a run's coordinator.

    Raises:
        Malformed: an agent has not written the file in this form.
        OSError: it cannot be read; usually because the run is not live.
    """
    endpoint = decode_endpoint(run_dir.files.read(run_dir.endpoint, LARGEST_ENDPOINT_BYTES))
    if endpoint.listens_at and endpoint.network_id == find_network_id():
        # A translation of addresses often does not lead back to the machine that a packet comes from.
        return msgspec.structs.replace(endpoint, host=endpoint.listens_at)
    return endpoint


def read_own_endpoint(run_dir: RunDir, attempt: int) -> CoordinatorEndpoint:
    """Return the host and the port of a run's coordinator, for a process of one attempt of the run.

    Args:
        attempt: how often the run had been resumed when the attempt of this process began.

    Raises:
        AnotherAttempt: the coordinator belongs to another attempt.
        Malformed, OSError: as `read_endpoint` raises them.
    """
    endpoint = read_endpoint(run_dir)
    if endpoint.attempt != attempt:
        raise AnotherAttempt(attempt, endpoint.attempt)
    return endpoint


def build_endpoint(
    run_dir: RunDir, address: MachineAddress, port: int, certificate: str, attempt: int
) -> CoordinatorEndpoint:
    """Return the endpoint of a coordinator of this machine.

    Args:
        certificate: of the run, as PEM.
        attempt: how often the run had been resumed when its attempt began.
    """
    translated = address.reached_at != address.host
    return CoordinatorEndpoint(
        address.reached_at,
        port,
        certificate,
        node=run_dir.node,
        listens_at=address.host if translated else "",
        network_id=find_network_id() if translated else "",
        attempt=attempt,
        kept=run_dir.is_private,
    )


def publish_endpoint(run_dir: RunDir, endpoint: CoordinatorEndpoint) -> None:
    """Write the endpoint of a coordinator, unless that of a later term is published."""
    try:
        present = decode_endpoint(run_dir.files.read(run_dir.endpoint, LARGEST_ENDPOINT_BYTES))
    except (OSError, Malformed):
        present = None
    if present != endpoint and (present is None or present.term <= endpoint.term):
        replace_file(run_dir.endpoint, msgspec.json.encode(endpoint), durable=False)


def has_kept_endpoint(run_dir: RunDir) -> bool:
    """Return whether the directory has an endpoint that a controller keeps."""
    try:
        return decode_endpoint(run_dir.files.read(run_dir.endpoint, LARGEST_ENDPOINT_BYTES)).kept
    except (OSError, Malformed):
        return False


def read_secret(run_dir: RunDir) -> str:
    """Return the secret of a run, which every connection to its coordinator presents.

    Raises:
        Malformed: the file does not contain a secret. Unchecked, it could add headers to a request. Or it
            belongs to another user than the address to which it would be sent.
        OSError: it cannot be read.
    """
    with run_dir.files.open(run_dir.secret) as file:
        secret = read_at_most(file, LARGEST_ENDPOINT_BYTES).strip()
        owner = os.fstat(file.fileno()).st_uid
    with suppress(FileNotFoundError), run_dir.files.open(run_dir.endpoint) as file:
        if os.fstat(file.fileno()).st_uid != owner:
            raise Malformed(f"{run_dir.secret.name} and {run_dir.endpoint.name} belong to different users")
    if not _SECRET.fullmatch(secret):
        raise Malformed(f"{run_dir.secret.name} does not contain the secret of a run")
    return secret.decode()


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret, in hexadecimal digits: it tells runs apart and reveals nothing."""
    return hashlib.sha256(secret.encode()).hexdigest()


def build_bearer_header(secret: str) -> dict[str, str]:
    """Return the header that presents a secret."""
    return {"Authorization": f"Bearer {secret}"}
