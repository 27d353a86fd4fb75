"""How a controller is started, and what it says once it listens."""

import msgspec

from elastane.api.run_as import RunAs


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a controller is to run.

    Args:
        home: jobs are in ``runs`` below it.
        store: URL of the database.
        host: to listen on.
        port: likewise; 0: any that is free.
        certificate: file with the TLS certificate chain; empty: plain HTTP, on loopback only.
        key: file with its private key.
        devices: of this machine, in the pool ``local``.
        device: their kind.
        user: the owner of the first token.
        new_token: make another operator's token, though there is one: the last may be lost.
        run_as: the system users that jobs run as.
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


class ControllerStartFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a controller does not listen.

    The starting process gets it, and not only the log: on a full disk nothing can be logged.

    Args:
        what: happened.
        means: for the user who started it.
        do: about it.
    """

    what: str
    means: str = ""
    do: str = ""


class ControllerReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts for the process that started the controller.

    Args:
        url: where it listens.
        pid: of the controller.
        store: its database.
        token: an operator's new one, told only this once; empty: there is one already.
        narrowed: files and folders that others had rights to, which were taken from them.
        run_as: the system users that jobs run as.
    """

    url: str
    pid: int
    store: str
    token: str = ""
    narrowed: tuple[str, ...] = ()
    run_as: RunAs = RunAs()
