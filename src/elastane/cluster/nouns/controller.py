"""The controller as a process: its settings, its answer to the process that starts it, and its checks."""

from typing import Literal, TypeAlias

import msgspec

from elastane.cluster.nouns.run_as import RunAs
from elastane.common.bodies import AnswerBody

Check: TypeAlias = Literal["file", "integrity", "age", "reading", "writing", "turns", "engines"]
"""A check that a controller makes of itself: the store's files are those that it opened (``file``), their
content is intact (``integrity``), no stored change has been lost (``age``), the store answers (``reading``)
and accepts changes (``writing``), the cycles of the control loop succeed (``turns``), and the declared
engines answer (``engines``)."""


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a controller.

    Args:
        home: directory of the controller; jobs run in ``runs`` below it.
        port: port to listen on; 0: any free one.
        certificate: file with the TLS certificate chain; empty: plain HTTP, on loopback only.
        devices: number of devices of this machine, in the pool ``local``.
        user: the owner of the first token.
        new_token: create another operator's token although one exists, because the user may have lost it.
    """

    home: str
    store: str
    host: str = "127.0.0.1"
    port: int = 0
    certificate: str = ""
    key: str = ""
    devices: int = 1
    device: str = "cpu"
    user: str = "operator"
    new_token: bool = False
    run_as: RunAs = RunAs()


class ControllerReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts for the process that started the controller.

    Args:
        token: a new operator's token, shown only once; empty: one exists already.
        narrowed: files and folders to which other users lost their access.
        dashboard: address of the dashboard that was started beside it; empty: none was.
    """

    url: str
    pid: int
    store: str
    token: str = ""
    narrowed: tuple[str, ...] = ()
    run_as: RunAs = RunAs()
    dashboard: str = ""


class HealthProblem(AnswerBody, frozen=True, kw_only=True):
    """A failing check.

    Args:
        check: the check. While ``file``, ``integrity`` or ``age`` fails, the controller does not use the
            store: it plans nothing and refuses every request that needs the store.
        what: happened.
        do: the remedy for the operator.
        since_s: when the failure was first found, in seconds since 1970.
    """

    check: Check
    what: str
    do: str
    since_s: float


class Health(AnswerBody, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the controller and its store work.

    Args:
        status: ``failing``: some check fails, so some or all changes cannot be made; jobs continue as they
            are.
        problems: the failing checks, oldest first.
    """

    status: Literal["ok", "failing"]
    problems: tuple[HealthProblem, ...] = ()
