"""What the API server says about the Deployment of the controller and about its pods. Pure."""

import msgspec

from elastane.cluster.engines.kubernetes.pods import Metadata
from elastane.cluster.engines.kubernetes.refusals import ApiRefusal
from elastane.cluster.nouns.agents import Away
from elastane.common.safe_text import escape_line, fold_text
from elastane.common.untrusted_data import Decoder, Malformed

LONGEST_MESSAGE = 400


class Readiness(msgspec.Struct, frozen=True):
    """Whether a Deployment is available, and why it is not; empty: it is, or nothing is known."""

    is_available: bool
    why: str = ""


class _Generation(msgspec.Struct, frozen=True):
    generation: int = 0


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str = ""
    reason: str | None = None
    message: str | None = None


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    observed_generation: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    conditions: list[_Condition] | None = None


class _Deployment(msgspec.Struct, frozen=True):
    metadata: _Generation
    status: _Status = _Status()


class _Named(msgspec.Struct, frozen=True):
    metadata: Metadata


class _Waiting(msgspec.Struct, frozen=True):
    reason: str | None = None
    message: str | None = None


class _State(msgspec.Struct, frozen=True):
    waiting: _Waiting | None = None


class _Container(msgspec.Struct, frozen=True):
    state: _State = _State()


class _PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    conditions: list[_Condition] | None = None
    container_statuses: list[_Container] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: _PodStatus = _PodStatus()


class _List(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


_decode_deployment: Decoder[_Deployment] = Decoder(_Deployment)
_decode_named: Decoder[_Named] = Decoder(_Named)
_decode_pod: Decoder[_Pod] = Decoder(_Pod)
_decode_list: Decoder[_List] = Decoder(_List)


def decode_version(document: bytes) -> str:
    """Return the version of an object, which each change of it changes; empty: it cannot be read."""
    try:
        return _decode_named(document).metadata.resource_version
    except Malformed:
        return ""


def judge_deployment(answer: bytes | ApiRefusal | Away) -> Readiness:
    """Say whether the newest version of a Deployment is available."""
    if isinstance(answer, Away):
        return Readiness(False, answer.why)
    if isinstance(answer, ApiRefusal):
        return Readiness(False, answer.words)
    try:
        found = _decode_deployment(answer)
    except Malformed as error:
        return Readiness(False, f"its Deployment cannot be read: {error}")
    status = found.status
    if status.observed_generation < found.metadata.generation:
        return Readiness(False, "the cluster has not looked at its Deployment yet")
    if status.updated_replicas and status.available_replicas >= status.updated_replicas:
        return Readiness(True)
    for condition in status.conditions or ():
        if condition.status == "False" and condition.type in ("Available", "Progressing"):
            return Readiness(False, fold_text(condition.message or condition.type, LONGEST_MESSAGE))
    return Readiness(False)


def list_troubles(document: bytes) -> tuple[str, ...]:
    """Return what each pod of a list waits for, in words; a pod that cannot be read is left out."""
    try:
        items = _decode_list(document).items or ()
    except Malformed:
        return ()
    found: list[str] = []
    for item in items:
        try:
            pod = _decode_pod(bytes(item))
        except Malformed:
            continue
        reasons = [
            (one.type, one.reason, one.message)
            for one in pod.status.conditions or ()
            if one.type == "PodScheduled" and one.status == "False"
        ]
        reasons += [
            ("waiting", one.state.waiting.reason, one.state.waiting.message)
            for one in pod.status.container_statuses or ()
            if one.state.waiting
        ]
        for _, reason, message in reasons:
            words = fold_text(message or "", LONGEST_MESSAGE)
            found.append(
                f"pod {escape_line(pod.metadata.name, 80)}: {escape_line(reason or 'no reason', 60)}"
                + (f": {words}" if words else "")
            )
    return tuple(found)
