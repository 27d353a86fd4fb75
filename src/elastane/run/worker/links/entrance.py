"""The unproven connections of a mesh: the listener, accepted connections and dialled ones.

Any program on the machine can connect, send anything, or send nothing. Every failure of an unproven
connection, in Elastane's own code too, ends in `MeshEntrance._greet` or `MeshEntrance.advance`, which close
only this connection. Proven peers go to `elastane.run.worker.links.mesh`; only that module reads messages of
the run.
"""

import contextlib
import errno
import os
import selectors
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address

from elastane.common.addresses import find_family
from elastane.common.connections.patient_listener import compute_admission_rules
from elastane.common.connections.unproven_connections import (
    EXHAUSTED,
    AdmissionRules,
    RefusalLog,
    UnprovenConnections,
)
from elastane.run.nouns.machine_address import MachineAddress
from elastane.run.worker.links.encryption import EncryptedSocket, Encryption
from elastane.run.worker.links.frames import FrameStream, build_frame
from elastane.run.worker.links.handshake import LIMITS, Address, Credentials, Handshake, ProvenPeer

SOCKET_OPTIONS = (
    ((socket.IPPROTO_TCP, socket.TCP_NODELAY), 1),
    # A network that swallows packets is noticed in half a minute, not in a quarter of an hour. Not sooner: to
    # the kernel a peer that reads nothing looks the same.
    ((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT), 30_000),
    ((socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 10),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPINTVL), 5),
    ((socket.IPPROTO_TCP, socket.TCP_KEEPCNT), 4),
)
BACKLOG = 512
ACCEPTED_AT_ONCE = 32
CROWDED_S = 0.02
"""The pause after a batch of accepted connections: a flood costs a few percent of a core, not all."""
EXHAUSTED_S = 0.1
"""The pause after the system has refused a descriptor or memory."""
RETRY_S = 0.05
PATIENCE_S = 30.0
"""How long this worker dials a peer that listens, but with which no handshake succeeds."""
UNREACHABLE_S = 3.0
"""How long this worker dials an address that does not answer: enough for two lost packets."""
UNREACHABLE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT})


class PeerUnreachable(Exception):
    """The error that no process listens at the address of a peer."""


class Candidate:
    """A connection that is not proven yet.

    Args:
        sock: a new socket.
        handshake: a handshake that has not begun.
        dialled: the worker that this worker dials; None: the connection is accepted.
        encryption: encrypts the connection; None: it stays on this machine, or the run does not encrypt.

    Attributes:
        connecting: the other side has not answered yet.
        closed: this worker has closed it.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        sock: socket.socket,
        handshake: Handshake,
        dialled: int | None,
        encryption: Encryption | None = None,
    ) -> None:
        sock.setblocking(False)
        self._selector, self._handshake, self._encryption = selector, handshake, encryption
        self.stream = FrameStream(sock, LIMITS)
        self.dialled = dialled
        self._begun = False
        self.connecting = dialled is not None
        self.closed = False

    @property
    def knows_peer(self) -> bool:
        """See `Handshake.knows_peer`."""
        return self._handshake.knows_peer

    def connect(self, address: Address) -> None:
        """Begin to connect to a peer.

        Raises:
            PeerUnreachable: no process listens at its address.
            OSError: the system refuses.
        """
        code = self.stream.sock.connect_ex(address)
        if code not in {0, errno.EINPROGRESS}:
            raise _build_connect_error(code)
        self.register(selectors.EVENT_READ | selectors.EVENT_WRITE)

    def register(self, events: int) -> None:
        """Register the connection with the selector, for these events."""
        for option, value in SOCKET_OPTIONS:
            self.stream.sock.setsockopt(*option, value)
        self._selector.register(self.stream.sock, events, self)

    def shake_hands(self) -> ProvenPeer | None:
        """Continue the handshake as far as messages have arrived; return the peer once it is proven.

        Raises:
            PeerUnreachable: no process listens at its address.
            Malformed: the other side is not a worker of this run.
            EOFError: the other side has closed the connection.
            OSError: the connection is broken.
        """
        stream, handshake = self.stream, self._handshake
        if self.connecting:
            code = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise _build_connect_error(code)
            self.connecting = False
        if not self._begun and not self._begin():
            return None
        self._flush()
        while handshake.proven is None:
            try:
                read = stream.read()
            except BlockingIOError:
                return None
            if read is not None and (answer := handshake.receive(read[0])):
                stream.put(build_frame(answer))
                self._flush()
        return handshake.proven

    def _begin(self) -> bool:
        """Begin the encryption, if there is one, and the handshake; return whether both have begun."""
        stream = self.stream
        if self._encryption is not None and not isinstance(stream.sock, EncryptedSocket):
            stream.sock = self._encryption.wrap(stream.sock, accepted=self.dialled is None)
        if isinstance(stream.sock, EncryptedSocket):
            try:
                stream.sock.handshake_step()
            except BlockingIOError:
                # The few messages of either side always fit into the buffer of a new socket.
                self._selector.modify(stream.sock, selectors.EVENT_READ, self)
                return False
        self._begun = True
        if hello := self._handshake.begin():
            stream.put(build_frame(hello))
        return True

    def _flush(self) -> None:
        write = 0 if self.stream.flush() else selectors.EVENT_WRITE
        self._selector.modify(self.stream.sock, selectors.EVENT_READ | write, self)

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        with contextlib.suppress(KeyError):  # it was never registered
            self._selector.unregister(self.stream.sock)
        self.stream.sock.close()


@dataclass(slots=True)
class _Dial:
    """The attempts to reach one peer."""

    address: Address
    began_s: float
    candidate: Candidate | None = None
    attempted_s: float = 0.0
    retry_s: float = 0.0

    @property
    def unanswered_s(self) -> float | None:
        """The time at which the peer counts as unreachable unless it answers; None: it has answered."""
        waits = self.candidate is not None and self.candidate.connecting
        return self.attempted_s + UNREACHABLE_S if waits else None


class MeshEntrance:
    """The listener of one worker, and all of its unproven connections.

    Args:
        selector: the selector of the mesh. The data of this class's keys is a `Candidate` or, for the
            listener, this object.
        credentials: returns the present credentials of this worker.
        address: where this machine listens.
        rules: returns the present rules for accepted connections.
        encryption: encrypts the connections to other machines; None: the run does not.

    Raises:
        OSError: the system refuses the listener.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        credentials: Callable[[], Credentials],
        address: MachineAddress,
        rules: Callable[[], AdmissionRules] = compute_admission_rules,
        encryption: Encryption | None = None,
    ) -> None:
        self._selector = selector
        self._credentials = credentials
        self._encryption = encryption
        self.rules = rules
        self._unproven: UnprovenConnections[Candidate] = UnprovenConnections(rules())
        # A dialler that has proved itself counts on its connection, so strangers must not displace it.
        self._agreeing: set[Candidate] = set()
        self._dials: dict[int, _Dial] = {}
        self._lost: list[int] = []
        self._refusals = RefusalLog()
        self._resume_s: float | None = None
        self._machine = address
        self.listener = address.listen(BACKLOG)
        self.listener.setblocking(False)
        self.address: Address = (address.reached_at, self.listener.getsockname()[1])
        self._selector.register(self.listener, selectors.EVENT_READ, self)

    @property
    def quiet(self) -> bool:
        """No connection begins now, and nothing is due at a later time: the usual case of a `poll`."""
        return not (self._unproven or self._dials or self._lost) and self._resume_s is None

    # -- from the mesh -------------------------------------------------------------------------------------

    def dial(self, peer: int, address: Address, now_s: float) -> None:
        """Begin to connect to a peer, unless it is dialled already; `handle_due` returns lost peers."""
        if peer not in self._dials:
            self._dials[peer] = _Dial(address, now_s)
            self._attempt(peer, now_s)

    def accept(self, now_s: float) -> None:
        """Accept some of the waiting connections."""
        # A script may change the limit of its process.
        self._unproven.rules = self.rules()
        for _ in range(ACCEPTED_AT_ONCE):
            opens_s = self._unproven.compute_opening_s()
            if opens_s > now_s:
                self._pause(opens_s)
                return
            try:
                sock, address = self.listener.accept()
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._make_room(error, now_s)
                # Otherwise no connection waits, or accept(2) reports one that has gone away.
                return
            self._greet(sock, address[0], now_s)
        self._pause(now_s + CROWDED_S)

    def advance(self, candidate: Candidate, now_s: float) -> ProvenPeer | None:
        """Continue a handshake; return the peer once it is proven, and leave the stream to the mesh."""
        if candidate.closed:
            return None
        try:
            proven = candidate.shake_hands()
        except PeerUnreachable:
            assert candidate.dialled is not None, "only a dialled connection connects"
            self._give_up(candidate.dialled)
            return None
        # The one place where any failure of an unproven connection becomes its end.
        except Exception as error:  # noqa: BLE001
            reason = str(error) or type(error).__name__
            if candidate.dialled is None:
                self._refuse(candidate, reason, now_s)
            else:
                self._log_refusal(f"dialled worker {candidate.dialled}: {reason}", now_s)
                self._try_again(candidate.dialled, error, now_s)
            return None
        if candidate.dialled is None and candidate.knows_peer:
            self._unproven.discard(candidate)
            self._agreeing.add(candidate)
        if proven is not None:
            self._agreeing.discard(candidate)
            if candidate.dialled is not None:
                del self._dials[candidate.dialled]
        return proven

    def handle_due(self, now_s: float) -> list[int]:
        """Refuse expired candidates, retry dials and resume accepting if due; return the unreachable peers.

        Raises:
            OSError: this process has lacked descriptors or memory for too long to dial peers.
        """
        for candidate in self._unproven.list_expired(now_s):
            self._refuse(candidate, "it did not prove itself in time", now_s)
        for peer, dial in list(self._dials.items()):
            if dial.candidate is None and now_s >= dial.retry_s:
                self._attempt(peer, now_s)
            elif dial.unanswered_s is not None and now_s >= dial.unanswered_s:
                self._give_up(peer)
        if self._resume_s is not None and now_s >= self._resume_s:
            self._resume_s = None
            self._selector.register(self.listener, selectors.EVENT_READ, self)
        lost, self._lost = self._lost, []
        return lost

    def find_due_s(self) -> float | None:
        """Return the time at which `handle_due` is due, in monotonic seconds; None: nothing is due."""
        if self._lost:
            return 0.0
        due = [self._unproven.compute_expiry_s(), self._resume_s]
        due += [dial.retry_s for dial in self._dials.values() if dial.candidate is None]
        due += [dial.unanswered_s for dial in self._dials.values()]
        return min((time_s for time_s in due if time_s is not None), default=None)

    def close(self) -> None:
        """Close the listener and every unproven connection."""
        with contextlib.suppress(KeyError):  # a paused listener is not registered
            self._selector.unregister(self.listener)
        self.listener.close()
        for candidate in self._list_candidates():
            candidate.close()

    def close_sockets(self) -> None:
        """Close the descriptors after a fork, but leave the selector, which the parent shares."""
        self.listener.close()
        for candidate in self._list_candidates():
            candidate.stream.sock.close()

    def _list_candidates(self) -> list[Candidate]:
        dialled = [dial.candidate for dial in self._dials.values() if dial.candidate is not None]
        return [*self._unproven, *self._agreeing, *dialled]

    # -- accepting -----------------------------------------------------------------------------------------

    def _greet(self, sock: socket.socket, other: str, now_s: float) -> None:
        try:
            leaves_machine = sock.getsockname()[0] != other
            candidate = self._create_candidate(sock, self.address, None, leaves_machine)
            candidate.register(selectors.EVENT_READ)
        # As in `advance`, any failure ends only this connection.
        except Exception as error:  # noqa: BLE001
            sock.close()
            self._log_refusal(str(error) or type(error).__name__, now_s)
            return
        displaced = self._unproven.add(candidate, now_s, sock.fileno())
        if displaced is not None:
            self._refuse(displaced, "there were too many", now_s)

    def _make_room(self, error: OSError, now_s: float) -> None:
        """Close the oldest unproven connection; without one, wait: something else holds the descriptors.

        Wait for the minimum time of the oldest one first. As accept(2) takes a descriptor before it looks for
        a connection, the connection that has just taken the last descriptor may be the only one.
        """
        oldest, yields_s = self._unproven.oldest, self._unproven.compute_yield_s()
        if yields_s > now_s:
            self._pause(yields_s)
            return
        if oldest is not None:
            self._refuse(oldest, os.strerror(error.errno or 0), now_s)
        else:
            self._log_refusal(f"{os.strerror(error.errno or 0)}: connections wait", now_s)
        self._pause(now_s + (CROWDED_S if oldest else EXHAUSTED_S))

    def _pause(self, until_s: float) -> None:
        """Stop accepting for a while, and unregister the listener, so that `select` can wait."""
        if self._resume_s is None:
            self._selector.unregister(self.listener)
            self._resume_s = until_s

    # -- dialling ------------------------------------------------------------------------------------------

    def _attempt(self, peer: int, now_s: float) -> None:
        dial = self._dials[peer]
        dial.attempted_s = now_s
        try:
            host, port = self._machine.translate(*dial.address), dial.address[1]
            sock = socket.socket(find_family(host), socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            if self._encryption is not None and not ip_address(self._machine.host).is_unspecified:
                # The peer judges by this address whether the connection leaves its machine.
                sock.bind((self._machine.host, 0))
            dial.candidate = self._create_candidate(sock, dial.address, peer, host != self._machine.host)
            dial.candidate.connect((host, port))
        except PeerUnreachable:
            self._give_up(peer)
        except OSError as error:
            self._try_again(peer, error, now_s)

    def _try_again(self, peer: int, error: Exception, now_s: float) -> None:
        """Retry a dial later: the peer had too many connections or no route, or this process no descriptor.

        Raises:
            OSError: this process has had no descriptor for `PATIENCE_S`.
        """
        dial = self._dials[peer]
        if dial.candidate is not None:
            self._forget(dial.candidate)
        dial.candidate, dial.retry_s = None, now_s + RETRY_S
        unreachable = isinstance(error, OSError) and error.errno in UNREACHABLE
        if now_s < dial.began_s + (UNREACHABLE_S if unreachable else PATIENCE_S):
            return
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise error
        self._give_up(peer)

    def _give_up(self, peer: int) -> None:
        dial = self._dials.pop(peer)
        if dial.candidate is not None:
            self._forget(dial.candidate)
        self._lost.append(peer)

    def _create_candidate(
        self, sock: socket.socket, acceptor: Address, dialled: int | None, leaves_machine: bool
    ) -> Candidate:
        encryption = self._encryption if leaves_machine else None
        handshake = Handshake(self._credentials(), acceptor, dialled)
        return Candidate(self._selector, sock, handshake, dialled, encryption)

    # -- closing -------------------------------------------------------------------------------------------

    def _refuse(self, candidate: Candidate, reason: str, now_s: float) -> None:
        self._forget(candidate)
        self._log_refusal(reason, now_s)

    def _forget(self, candidate: Candidate) -> None:
        self._unproven.discard(candidate)
        self._agreeing.discard(candidate)
        candidate.close()

    def _log_refusal(self, reason: str, now_s: float) -> None:
        line = self._refusals.count(reason, now_s)
        if line is not None:
            sys.stderr.write(f"elastane mesh: {line}\n")
            sys.stderr.flush()


def _build_connect_error(code: int) -> Exception:
    """Return the error of a failed connect(2); a refusal proves that the process of the peer has ended."""
    error = OSError(code, os.strerror(code))
    return PeerUnreachable() if code == errno.ECONNREFUSED else error
