"""The dashboard as a process: its settings, and its answer to the process that starts it."""

import msgspec


class DashboardSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a dashboard, of a cluster or of one run.

    Args:
        cluster_url: address of the controller; empty: it shows one run.
        cluster_certificate: file with the certificate of the controller to trust; empty: those that the
            machine trusts.
        run_dir: directory of the run; empty: it shows a cluster.
        host: address to listen on.
        port: to listen on; 0: any free one.
        certificate: file with its own TLS certificate chain; empty: plain HTTP, on loopback only.
        key: file with the private key of that certificate.
    """

    cluster_url: str = ""
    cluster_certificate: str = ""
    run_dir: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    certificate: str = ""
    key: str = ""


class DashboardReady(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts for the process that started the dashboard.

    Args:
        url: as browsers on this machine reach it.
        pid: of its process.
        key: with which a browser signs in to the page of a run, shown only once; empty: people sign in with
            their tokens of the cluster.
    """

    url: str
    pid: int
    key: str = ""
