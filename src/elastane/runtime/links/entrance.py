"""Connections of a mesh that are not proven yet: the listener, accepted and dialled connections.

Any program on the machine can connect, send anything, or send nothing. Every failure of an unproven
connection, one in our own code too, ends in `MeshEntrance._greet` or `MeshEntrance._advance`, which close
this connection and nothing else. Proven peers go to `elastane.runtime.links.mesh`; only that module reads
messages of the run.
"""

import contextlib
import errno
import os
import selectors
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

from elastane.api.patient_listener import compute_admission_rules
from elastane.api.unproven_connections import EXHAUSTED, AdmissionRules, RefusalLog, UnprovenConnections
from elastane.runtime.links.frames import FrameStream, build_frame
from elastane.runtime.links.handshake import LIMITS, Address, Credentials, Handshake, ProvenPeer

BACKLOG = 512
ACCEPTED_AT_ONCE = 32
CROWDED_S = 0.02
"""Pause after as many connections were accepted at once: a flood costs a few percent of a core, not all."""
EXHAUSTED_S = 0.1
"""Pause after the system refused a descriptor or memory."""
RETRY_S = 0.05
PATIENCE_S = 30.0
"""A peer that is there, but with which no handshake succeeds, is given up after so many seconds."""


class Candidate:
    """A connection that has not proved itself.

    Args:
        stream: to the other side.
        handshake: as far as it has come.
        dialled: the worker that was dialled; None: accepted.
    """

    def __init__(self, stream: FrameStream, handshake: Handshake, dialled: int | None) -> None:
        self.stream = stream
        self.handshake = handshake
        self.dialled = dialled
        self.connecting = dialled is not None
        self.closed = False


@dataclass(slots=True)
class _Dial:
    """Attempts to reach one peer."""

    address: Address
    give_up_s: float
    candidate: Candidate | None = None
    retry_s: float = 0.0


class PeerUnreachable(Exception):
    """Nobody listens at the address of a peer."""


class MeshEntrance:
    """The listener of one worker, and all of its connections that are not proven.

    Args:
        selector: of the mesh; the data of every key of this class is a `Candidate`, or this object for the
            listener.
        credentials: returns what this worker proves itself with now.
        host: address to listen on.
        rules: returns the rules for accepted connections now.

    Raises:
        OSError: it cannot listen.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        credentials: Callable[[], Credentials],
        host: str,
        rules: Callable[[], AdmissionRules] = compute_admission_rules,
    ) -> None:
        self._selector = selector
        self._credentials = credentials
        self.rules = rules
        self._unproven: UnprovenConnections[Candidate] = UnprovenConnections(rules())
        self._dials: dict[int, _Dial] = {}
        self._lost: list[int] = []
        self._refusals = RefusalLog()
        self._resume_s: float | None = None
        self.listener = socket.create_server((host, 0), backlog=BACKLOG)
        self.listener.setblocking(False)
        self.address: Address = self.listener.getsockname()[:2]
        self._selector.register(self.listener, selectors.EVENT_READ, self)

    @property
    def quiet(self) -> bool:
        """Nothing begins here now, and nothing waits for time to pass: the usual case of a `poll`."""
        return not (self._unproven or self._dials or self._lost) and self._resume_s is None

    # -- from the mesh -------------------------------------------------------------------------------------

    def dial(self, peer: int, address: Address, now_s: float) -> None:
        """Begin to connect to a peer, unless that is under way; `tend` reports one that cannot be reached."""
        if peer not in self._dials:
            self._dials[peer] = _Dial(address, now_s + PATIENCE_S)
            self._attempt(peer, now_s)

    def accept(self, now_s: float) -> None:
        """Accept some of the connections that wait."""
        # A script may change the limit of its process.
        self._unproven.rules = self.rules()
        for _ in range(ACCEPTED_AT_ONCE):
            opens_s = self._unproven.opens_at_s()
            if opens_s > now_s:
                self._pause(opens_s)
                return
            try:
                sock, _address = self.listener.accept()
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._make_room(error, now_s)
                # Otherwise nobody waits, or who waited has gone away: accept(2) reports that here.
                return
            self._greet(sock, now_s)
        self._pause(now_s + CROWDED_S)

    def advance(self, candidate: Candidate, now_s: float) -> ProvenPeer | None:
        """Go on with a handshake; return the peer once it is proven, and the stream is the mesh's then."""
        if candidate.closed:
            return None
        proven = self._advance(candidate, now_s)
        if proven is not None:
            self._unproven.discard(candidate)
            if candidate.dialled is not None:
                del self._dials[candidate.dialled]
        return proven

    def tend(self, now_s: float) -> list[int]:
        """Do what is due by time; return the peers that cannot be reached.

        Raises:
            OSError: this process has lacked descriptors or memory for so long that peers cannot be dialled.
        """
        for candidate in self._unproven.expired(now_s):
            self._close(candidate, "it did not prove itself in time", now_s)
        for peer, dial in list(self._dials.items()):
            if dial.candidate is None and now_s >= dial.retry_s:
                self._attempt(peer, now_s)
        if self._resume_s is not None and now_s >= self._resume_s:
            self._resume_s = None
            self._selector.register(self.listener, selectors.EVENT_READ, self)
        lost, self._lost = self._lost, []
        return lost

    def due_s(self) -> float | None:
        """Return when `tend` is due, in monotonic seconds; None: nothing waits for time to pass."""
        if self._lost:
            return 0.0
        due = [self._unproven.expires_at_s(), self._resume_s]
        due += [dial.retry_s for dial in self._dials.values() if dial.candidate is None]
        return min((at for at in due if at is not None), default=None)

    def close(self) -> None:
        """Close the listener and every unproven connection."""
        with contextlib.suppress(KeyError):  # while it pauses, it is not registered
            self._selector.unregister(self.listener)
        for candidate in self._candidates():
            candidate.closed = True
            self._selector.unregister(candidate.stream.sock)
        self.close_sockets()

    def close_sockets(self) -> None:
        """Close the descriptors, and leave the selector alone: it is shared with the parent of a fork."""
        self.listener.close()
        for candidate in self._candidates():
            candidate.stream.sock.close()

    def _candidates(self) -> list[Candidate]:
        dialled = [dial.candidate for dial in self._dials.values() if dial.candidate is not None]
        return [*self._unproven, *dialled]

    # -- accepting -----------------------------------------------------------------------------------------

    def _greet(self, sock: socket.socket, now_s: float) -> None:
        try:
            candidate = self._candidate(sock, self.address, None)
            self._register(candidate, selectors.EVENT_READ)
        # As in `_advance`: whatever fails, only this connection ends.
        except Exception as error:  # noqa: BLE001
            sock.close()
            self._refuse(str(error) or type(error).__name__, now_s)
            return
        displaced = self._unproven.add(candidate, now_s, sock.fileno())
        if displaced is not None:
            self._close(displaced, "there were too many", now_s)

    def _make_room(self, error: OSError, now_s: float) -> None:
        """Close the oldest unproven connection; without one, something else holds the descriptors: wait.

        It has its time first: accept(2) asks for a descriptor before it looks whether anybody waits, so the
        connection that has just taken the last one may be the only one.
        """
        oldest, yields_s = self._unproven.oldest, self._unproven.yields_at_s()
        if yields_s > now_s:
            self._pause(yields_s)
            return
        if oldest is not None:
            self._close(oldest, os.strerror(error.errno or 0), now_s)
        else:
            self._refuse(f"{os.strerror(error.errno or 0)}: connections wait", now_s)
        self._pause(now_s + (CROWDED_S if oldest else EXHAUSTED_S))

    def _pause(self, until_s: float) -> None:
        """Stop accepting for a while; a listener that cannot be served would keep `select` from waiting."""
        if self._resume_s is None:
            self._selector.unregister(self.listener)
            self._resume_s = until_s

    # -- dialling ------------------------------------------------------------------------------------------

    def _attempt(self, peer: int, now_s: float) -> None:
        dial = self._dials[peer]
        try:
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            dial.candidate = self._candidate(sock, dial.address, peer)
            self._connect(dial.candidate, dial.address)
        except PeerUnreachable:
            self._give_up(peer)
        except OSError as error:
            self._try_again(peer, error, now_s)

    def _connect(self, candidate: Candidate, address: Address) -> None:
        code = candidate.stream.sock.connect_ex(address)
        if code not in {0, errno.EINPROGRESS}:
            raise _connect_error(code)
        self._register(candidate, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def _try_again(self, peer: int, error: Exception, now_s: float) -> None:
        """Dial again in a while: the peer had too many connections, or this process has no descriptor.

        Raises:
            OSError: patience is over, and the reason is this process.
        """
        dial = self._dials[peer]
        if dial.candidate is not None:
            self._forget(dial.candidate)
        dial.candidate, dial.retry_s = None, now_s + RETRY_S
        if now_s < dial.give_up_s:
            return
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise error
        self._give_up(peer)

    def _give_up(self, peer: int) -> None:
        dial = self._dials.pop(peer)
        if dial.candidate is not None:
            self._forget(dial.candidate)
        self._lost.append(peer)

    # -- handshakes ----------------------------------------------------------------------------------------

    def _candidate(self, sock: socket.socket, acceptor: Address, dialled: int | None) -> Candidate:
        sock.setblocking(False)
        handshake = Handshake(self._credentials(), acceptor, dialled)
        return Candidate(FrameStream(sock, LIMITS), handshake, dialled)

    def _register(self, candidate: Candidate, events: int) -> None:
        candidate.stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(candidate.stream.sock, events, candidate)

    def _advance(self, candidate: Candidate, now_s: float) -> ProvenPeer | None:
        try:
            return self._shake_hands(candidate)
        except PeerUnreachable:
            assert candidate.dialled is not None, "only a dialled connection connects"  # noqa: S101
            self._give_up(candidate.dialled)
        # The one place where the failure of an unproven connection, of whatever kind, becomes its end.
        except Exception as error:  # noqa: BLE001
            reason = str(error) or type(error).__name__
            if candidate.dialled is None:
                self._close(candidate, reason, now_s)
            else:
                self._refuse(f"dialled worker {candidate.dialled}: {reason}", now_s)
                self._try_again(candidate.dialled, error, now_s)
        return None

    def _shake_hands(self, candidate: Candidate) -> ProvenPeer | None:
        stream, handshake = candidate.stream, candidate.handshake
        if candidate.connecting:
            code = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise _connect_error(code)
            candidate.connecting = False
            stream.put(build_frame(handshake.begin()))
        self._flush(candidate)
        while handshake.proven is None:
            try:
                read = stream.read()
            except BlockingIOError:
                return None
            if read is not None and (answer := handshake.hear(read[0])):
                stream.put(build_frame(answer))
                self._flush(candidate)
        return handshake.proven

    def _flush(self, candidate: Candidate) -> None:
        write = 0 if candidate.stream.flush() else selectors.EVENT_WRITE
        self._selector.modify(candidate.stream.sock, selectors.EVENT_READ | write, candidate)

    # -- closing -------------------------------------------------------------------------------------------

    def _close(self, candidate: Candidate, reason: str, now_s: float) -> None:
        self._forget(candidate)
        self._refuse(reason, now_s)

    def _forget(self, candidate: Candidate) -> None:
        self._unproven.discard(candidate)
        candidate.closed = True
        with contextlib.suppress(KeyError):  # it was never registered
            self._selector.unregister(candidate.stream.sock)
        candidate.stream.sock.close()

    def _refuse(self, reason: str, now_s: float) -> None:
        line = self._refusals.count(reason, now_s)
        if line is not None:
            print(f"elastane mesh: {line}", file=sys.stderr, flush=True)  # noqa: T201 - the worker's log


def _connect_error(code: int) -> Exception:
    """What a failed connect(2) means: a refusal says for certain that the peer's process is gone."""
    error = OSError(code, os.strerror(code))
    return PeerUnreachable() if code == errno.ECONNREFUSED else error
