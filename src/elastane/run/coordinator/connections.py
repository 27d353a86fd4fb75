"""Authenticated connections to the coordinator: one JSON message per frame.

`elastane.run.connections.authentication` handles connections until they have presented the run's secret.
Sending only puts a message into the connection's outbox, so a peer that does not read delays no other peer.
"""

import asyncio
import socket
import ssl
from contextlib import AbstractAsyncContextManager

import msgspec
from websockets.asyncio.server import Server, ServerConnection
from websockets.exceptions import ConnectionClosed

from elastane.common.untrusted_data import Malformed
from elastane.run.connections.authentication import Pages, serve_authenticated
from elastane.run.connections.short_reports import ProposedGenerations, complete_steps
from elastane.run.coordinator.actions import CommandRequest, Disconnected, Input
from elastane.run.nouns.control import (
    LARGEST_MESSAGE_BYTES,
    AgentReport,
    Answer,
    AskCheckpoint,
    AskDrain,
    AskDrainNode,
    AskEvict,
    AskResize,
    AskStatus,
    AskStop,
    ControlMessage,
    StepReports,
    ToCoordinator,
    WorkerReport,
    decode_to_coordinator,
    encode,
)
from elastane.run.nouns.membership import NodeAddress, NodeName, WorkerId
from elastane.run.nouns.records import Shares

MOST_UNREAD = 1024
FIRST_MESSAGE_S = 60.0
POLICY_VIOLATION = 1008
INVALID_PAYLOAD = 1007
REASON_BYTES = 120


class Outbox:
    """The messages that wait for sending on one connection."""

    def __init__(self, connection: ServerConnection) -> None:
        self.connection = connection
        self._messages: asyncio.Queue[bytes] = asyncio.Queue(MOST_UNREAD)

    def put(self, message: ControlMessage) -> None:
        if self._messages.full():
            # The peer has not read for minutes. Once it is back, reports repeat all important information.
            self.connection.transport.abort()
        else:
            self._messages.put_nowait(encode(message))

    async def send(self) -> None:
        """Send messages until the connection ends."""
        while True:
            await self.connection.send(await self._messages.get(), text=True)


class Connections:
    """The present connections, and one inbox for all their messages."""

    def __init__(self) -> None:
        self.generations = ProposedGenerations()
        self.inbox: asyncio.Queue[Input] = asyncio.Queue()
        self.workers: dict[WorkerId, Outbox] = {}
        self.agents: dict[NodeName, Outbox] = {}
        self.requesters: dict[int, Outbox] = {}
        self._last_token = 0
        self._nodes: tuple[NodeAddress, ...] = ()

    def listen(
        self,
        listening: socket.socket,
        secret: str,
        context: ssl.SSLContext | None = None,
        *,
        pages: Pages | None = None,
    ) -> AbstractAsyncContextManager[Server]:
        """Return a server of connections with the secret of the run, see `serve_authenticated`."""
        return serve_authenticated(
            self.serve,
            listening,
            secret,
            largest_bytes=LARGEST_MESSAGE_BYTES,
            context=context,
            pages=pages,
        )

    def reply(self, token: int, answer: Answer) -> None:
        """Answer a `CommandRequest`, unless its connection has ended."""
        if (requester := self.requesters.pop(token, None)) is not None:
            requester.put(answer)

    async def serve(self, connection: ServerConnection) -> None:
        """Read one connection to its end."""
        outbox = Outbox(connection)
        async with asyncio.TaskGroup() as group:
            sending = group.create_task(_send_until_closed(outbox))
            try:
                await self._receive(connection, outbox)
            finally:
                sending.cancel()
                self._forget(outbox)

    async def _receive(self, connection: ServerConnection, outbox: Outbox) -> None:
        owner: WorkerId | None = None
        shares: Shares = {}
        # A connection that presents the secret and sends nothing must not stay forever.
        deadline = asyncio.get_running_loop().call_later(FIRST_MESSAGE_S, connection.transport.abort)
        try:
            async for frame in connection:
                deadline.cancel()
                message = decode_to_coordinator(frame)
                if isinstance(message, WorkerReport):
                    message = self.generations.complete(message)
                elif isinstance(message, StepReports) and message.reports:
                    message = complete_steps(message, shares)
                    shares = message.reports[-1].line.workers
                worker = getattr(message, "worker", None) if not isinstance(message, AskDrain) else None
                if worker is not None and owner not in (None, worker):
                    reason = f"this connection belongs to worker {owner}, not to worker {worker}"
                    await connection.close(POLICY_VIOLATION, reason)
                    return
                owner = worker if owner is None else owner
                self._dispatch(message, worker, outbox)
        except Malformed as error:
            reason = f"invalid message: {error}".encode()[:REASON_BYTES].decode(errors="ignore")
            await connection.close(INVALID_PAYLOAD, reason)
        except ConnectionClosed:
            return
        finally:
            deadline.cancel()

    def _dispatch(self, message: ToCoordinator, worker: WorkerId | None, outbox: Outbox) -> None:
        if isinstance(
            message, AskResize | AskDrain | AskDrainNode | AskEvict | AskStatus | AskStop | AskCheckpoint
        ):
            self._last_token += 1
            self.requesters[self._last_token] = outbox
            self.inbox.put_nowait(CommandRequest(self._last_token, message))
            return
        if isinstance(message, AgentReport):
            self.agents[message.node] = outbox
            message = self._share_nodes(message)
        elif worker is not None:
            self.workers[worker] = outbox
        self.inbox.put_nowait(message)

    def _share_nodes(self, report: AgentReport) -> AgentReport:
        """Return a report with the same list of machines as the last one, if they are equal."""
        if report.nodes != self._nodes:
            self._nodes = report.nodes
        return msgspec.structs.replace(report, nodes=self._nodes)

    def _forget(self, outbox: Outbox) -> None:
        for worker in [worker for worker, known in self.workers.items() if known is outbox]:
            del self.workers[worker]
            self.inbox.put_nowait(Disconnected(worker))
        self.agents = {node: known for node, known in self.agents.items() if known is not outbox}
        self.requesters = {token: known for token, known in self.requesters.items() if known is not outbox}


async def _send_until_closed(outbox: Outbox) -> None:
    try:
        await outbox.send()
    except ConnectionClosed:
        return
