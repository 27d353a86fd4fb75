"""The handshake of two workers: each proves to the other that it knows the run's secret.

They also agree whether they read each other's memory. Five messages, none of which contains the secret::

    dialler   -> Hello(worker, nonce)
    acceptor  -> Hello(worker, nonce)
    dialler   -> Proof(process, reads, HMAC)
    acceptor  -> Proof(process, reads, HMAC)
    dialler   -> Agreement(shared)

Each HMAC covers the prover's role, the numbers of both workers, the address at which the acceptor listens,
both nonces, and what the prover says about its process and about the memory of the receiver. So a proof is
useless outside the handshake for which it was made:

- *Replay*: both nonces are random and new for each connection.
- *Reflection*: a proof names its role, so the proof of an acceptor is not one of a dialler. A worker refuses
  a connection in its own name, and accepts only from workers with higher numbers.
- *Relay to another worker*: a proof names the worker that receives it. Suppose a stranger is dialled in place
  of worker 0, because it listens where a dead worker did. It cannot use the proof that it receives to enter
  worker 1.
- *Relay from another address*: a proof names the acceptor's address. So a stranger cannot relay the handshake
  between a dialler that was led to the stranger's port and the real acceptor. It could only forward bytes
  between the two real addresses, which takes control of the network or of the machine.
- *Oracle*: the dialler proves itself first, so an acceptor makes no proofs for strangers. A dialler makes one
  for any process that listens where it dials, but only the dialled worker would accept it.

Frames after the handshake carry no HMAC: within a machine only the system's administrator can alter them,
and between machines `elastane.run.worker.links.encryption` protects them, or the user trusts the network.

This module only computes. `elastane.run.worker.links.entrance` holds the sockets.
"""

import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

import msgspec

from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.worker.links.frames import FrameLimits
from elastane.run.worker.links.memory_mark import MARK_BYTES

NONCE_BYTES = 32
PROOF_BYTES = 32
NAME_BYTES = 64
VERSION = "elastane mesh 4"

# The numbers of workers, processes and descriptors; -1: no descriptor yet.
_Number = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """The announcement of a worker, which proves nothing."""

    worker: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    nonce: Annotated[bytes, msgspec.Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]


class Process(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The facts that a peer needs to read this worker's memory.

    Args:
        sums: the descriptor, in that process, of the arena of summed gradients.
        values: the descriptor, in that process, of the arena of parameters.
        mark_fd: the descriptor, in that process, of its mark.
        mark: the mark, see `elastane.run.worker.links.memory_mark`.
        door: the name of its door, see `elastane.run.worker.links.descriptor_door`; empty: it has none.
        device: equal on peers that can map each other's device memory; empty: it shares none.
    """

    pid: _Number
    sums: _Number
    values: _Number
    mark_fd: _Number
    mark: Annotated[bytes, msgspec.Meta(min_length=MARK_BYTES, max_length=MARK_BYTES)]
    door: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{0,64}\Z")] = ""
    device: Annotated[str, msgspec.Meta(max_length=NAME_BYTES)] = ""


class Proof(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """The description of this process, with a proof that it knows the secret.

    Args:
        reads: the sender can read the memory of the receiver; a dialler does not know that yet.
    """

    process: Process
    reads: bool
    proof: Annotated[bytes, msgspec.Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class Agreement(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """The end of the handshake: ``shared`` if the two workers read each other's memory."""

    shared: bool


LIMITS = FrameLimits(message=256, payload=0)
"""The limits of frames during the handshake; the longest has fewer than 250 bytes."""

Address: TypeAlias = tuple[str, int]
_encode = msgspec.msgpack.Encoder().encode
decode_handshake: Decoder[Hello | Proof | Agreement] = Decoder(
    Hello | Proof | Agreement, format="msgpack", at_most_bytes=LIMITS.message
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials that one worker uses in every handshake.

    Args:
        can_read: returns whether this process can read the memory of a proven peer, and may.
    """

    worker: int
    secret: bytes
    process: Process
    can_read: Callable[[Process], bool]


@dataclass(frozen=True, slots=True)
class ProvenPeer:
    """A worker that has proved that it knows the run's secret.

    Args:
        shared: it and this worker read each other's memory.
    """

    worker: int
    process: Process
    shared: bool


class Handshake:
    """One side of one handshake.

    Args:
        acceptor: the address at which the accepting side listens.
        dialled: the worker that this side dials; None: this side accepts.
    """

    def __init__(self, credentials: Credentials, acceptor: Address, dialled: int | None) -> None:
        self._credentials = credentials
        self._acceptor = acceptor
        self._dialled = dialled
        self._hello = Hello(credentials.worker, os.urandom(NONCE_BYTES))
        self._peer_hello: Hello | None = None
        self._peer_process: Process | None = None
        self._reads = False
        self.proven: ProvenPeer | None = None

    @property
    def knows_peer(self) -> bool:
        """The other side has proved itself; an accepting side may still wait for its last message."""
        return self._peer_process is not None

    def begin(self) -> bytes:
        """Return the first message to send; the accepting side has none."""
        return b"" if self._dialled is None else _encode(self._hello)

    def receive(self, message: bytes | bytearray) -> bytes:
        """Handle the next message of the other side; return the answer, empty if none is due.

        Raises:
            Malformed: a worker of this run would not have sent this message at this point.
        """
        received = decode_handshake(message)
        if self.proven is not None:
            raise Malformed("a message after the end of the handshake")
        match received:
            case Hello():
                self._take_hello(received)
                return _encode(self._hello) if self._dialled is None else self._build_proof()
            case Proof():
                self._take_proof(received)
                return self._build_proof() if self._dialled is None else self._end(received)
            case Agreement(shared):
                self._take_agreement(shared=shared)
                return b""

    def _take_hello(self, hello: Hello) -> None:
        if self._peer_hello is not None:
            raise Malformed("a second hello")
        if self._dialled is None and hello.worker <= self._credentials.worker:
            raise Malformed(f"worker {hello.worker} does not dial worker {self._credentials.worker}")
        if self._dialled is not None and hello.worker != self._dialled:
            raise Malformed(f"worker {hello.worker} answers in place of worker {self._dialled}")
        self._peer_hello = hello

    def _take_proof(self, received: Proof) -> None:
        if self._peer_hello is None or self._peer_process is not None:
            raise Malformed("a proof before a hello, or a second proof")
        expected = self._compute_mac(
            self._their_role, self._peer_hello, self._hello, received.process, reads=received.reads
        )
        if not hmac.compare_digest(received.proof, expected):
            raise Malformed(f"the proof of worker {self._peer_hello.worker} is wrong")
        self._peer_process = received.process
        self._reads = self._credentials.can_read(received.process)

    def _end(self, received: Proof) -> bytes:
        """End the dialling side: the acceptor has said whether it can read this worker's memory."""
        assert self._peer_hello is not None, "the proof names the other side"
        shared = self._reads and received.reads
        self.proven = ProvenPeer(self._peer_hello.worker, received.process, shared)
        return _encode(Agreement(shared))

    def _take_agreement(self, *, shared: bool) -> None:
        if self._peer_hello is None or self._peer_process is None or self._dialled is not None:
            raise Malformed("an agreement before a proof, or from the accepting side")
        if shared and not self._reads:
            raise Malformed("an agreement on memory that this worker cannot read")
        self.proven = ProvenPeer(self._peer_hello.worker, self._peer_process, shared)

    @property
    def _their_role(self) -> Literal["dialler", "acceptor"]:
        return "dialler" if self._dialled is None else "acceptor"

    def _build_proof(self) -> bytes:
        assert self._peer_hello is not None, "the other side has said hello"
        role: Literal["dialler", "acceptor"] = "acceptor" if self._dialled is None else "dialler"
        process, reads = self._credentials.process, self._reads
        proof = self._compute_mac(role, self._hello, self._peer_hello, process, reads=reads)
        return _encode(Proof(process, reads, proof))

    def _compute_mac(
        self,
        role: Literal["dialler", "acceptor"],
        prover: Hello,
        receiver: Hello,
        process: Process,
        *,
        reads: bool,
    ) -> bytes:
        # The encoding has only one decoding, so that two different statements never have equal bytes.
        statement = _encode((VERSION, role, prover, receiver, self._acceptor, process, reads))
        return hmac.digest(self._credentials.secret, statement, "sha256")
