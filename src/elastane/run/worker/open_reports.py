"""The open reports of a worker: those of committed steps that its coordinator may not have.

A report waits until its step has its digest and everything that the script records between two steps. Then it
goes to the coordinator, again and again until that acknowledges it.

A worker that joins takes over the open reports of the workers that send it the values of the model. If all
of them die together with the coordinator, the joiner has the state after their last step, and it alone can
report that step.
"""

from collections.abc import Callable, Mapping

import msgspec

from elastane.common.untrusted_data import Decoder
from elastane.run.nouns import control
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.nouns.records import Digest
from elastane.run.worker.links.coordinator_link import CoordinatorLink
from elastane.run.worker.links.mesh import LIMITS

MOST_HANDED = 512
"""The most reports of steps, and the most events, that a joiner takes over, oldest first.

There are more only if the coordinator cannot write its files for long.
"""
MOST_HANDED_BYTES = LIMITS.message // 2
"""Larger reports stay with their worker: its peers take a worker with too long a message for broken."""


class HandedReports(msgspec.Struct, frozen=True):
    """The open reports of a worker, for one that joins with its state.

    Args:
        steps: the reports of steps, oldest first.
        events: the events that the coordinator may not have recorded, oldest first.
        awaits_digest: the last step has no digest yet; the votes of the next one bring it.
    """

    steps: tuple[control.StepReport, ...]
    events: tuple[control.WorkerEvent, ...]
    awaits_digest: bool


_encode = msgspec.msgpack.Encoder().encode
_decode: Decoder[HandedReports] = Decoder(HandedReports, format="msgpack", at_most_bytes=LIMITS.message)


class OpenReports:
    """The open reports of one worker.

    Args:
        link: the connection to the coordinator; None: the process trains alone.
        send: sends a report of a step that lacks nothing any more.
    """

    def __init__(self, link: CoordinatorLink | None, send: Callable[[control.StepReport], None]) -> None:
        self._link, self._send = link, send
        self._waiting: list[control.StepReport] = []
        self._awaits_digest = self._awaits_script = False
        self._has_trained = False

    def add(self, report: control.StepReport, *, digest_due: bool) -> None:
        """Add the report of a step just committed; if its digest is due, the report waits for it."""
        self._has_trained = True
        self._waiting.append(report)
        self._awaits_digest, self._awaits_script = digest_due, True

    def update_record(self, values: Mapping[str, float], files: Mapping[str, WrittenFile]) -> None:
        """Set the values and files that the script has recorded so far for the last step."""
        if self._waiting:
            newest = self._waiting[-1]
            line = msgspec.structs.replace(newest.line, logged=dict(values), artifacts=dict(files))
            self._waiting[-1] = msgspec.structs.replace(newest, line=line)

    def end_record(self) -> None:
        """Note that the script will record nothing more for the last step."""
        self._awaits_script = False
        self._send_complete()

    def set_digest(self, step: int, digest: Digest) -> None:
        """Add the digest of the state after a step to its report."""
        for i, report in enumerate(self._waiting):
            if report.line.step == step:
                line = msgspec.structs.replace(report.line, digest=digest)
                self._waiting[i] = msgspec.structs.replace(report, line=line)
        self._awaits_digest = False
        self._send_complete()

    def send_all(self) -> None:
        """Send all reports, without waiting for digests or for the script."""
        self._awaits_digest = self._awaits_script = False
        self._send_complete()

    def _send_complete(self) -> None:
        if self._awaits_digest or self._awaits_script:
            return
        reports, self._waiting = self._waiting, []
        for report in reports:
            self._send(report)

    # -- from one worker to another --------------------------------------------------------------------------

    def hand_over(self) -> bytes:
        """Return the open reports for a worker that joins, once the script has gone on from the last step."""
        if self._link is None:
            return b""
        steps, events = self._link.list_unacknowledged()
        steps += self._waiting
        handed = HandedReports(
            tuple(steps[:MOST_HANDED]),
            tuple(events[:MOST_HANDED]),
            awaits_digest=self._awaits_digest and len(steps) <= MOST_HANDED,
        )
        encoded = _encode(handed)
        return encoded if len(encoded) <= MOST_HANDED_BYTES else b""

    def take_over(self, handed: bytes) -> None:
        """Take over the open reports of a worker that sends the state, if this one has not trained before it.

        Raises:
            Malformed: the bytes do not come from `hand_over`.
        """
        reports = _decode(handed)
        if self._link is None or self._has_trained:
            return
        complete = reports.steps[:-1] if reports.awaits_digest else reports.steps
        self._link.take_over(complete, reports.events)
        self._waiting, self._awaits_digest = list(reports.steps[len(complete) :]), reports.awaits_digest
