"""Where an API server is and how to speak to it: from a kubeconfig, or from inside a pod."""

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from elastane.cluster.engines.kubernetes.options import KubernetesOptions
from elastane.common.documents import read_yaml
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Malformed, read_bytes

LARGEST_BYTES = 1 << 20
DEFAULT_FILE = ".kube/config"
DEFAULT_NAMESPACE = "default"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ExecVariable(msgspec.Struct, frozen=True):
    name: str
    value: str = ""


class ExecProgram(msgspec.Struct, frozen=True, rename="camel"):
    """A program that prints a token."""

    command: str
    api_version: str
    args: tuple[str, ...] | None = None
    env: tuple[ExecVariable, ...] | None = None


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    token: str = ""
    token_file: str = msgspec.field(name="tokenFile", default="")
    username: str = ""
    password: str = ""
    exec: ExecProgram | None = None
    auth_provider: object = None
    impersonated: str = msgspec.field(name="as", default="")


class _Context(msgspec.Struct, frozen=True):
    cluster: str
    user: str = ""
    namespace: str = ""


class ApiAccess(msgspec.Struct, frozen=True, kw_only=True):
    """All that a client of an API server needs. Certificates and keys are in PEM; empty: not used.

    Args:
        server: its URL, without a slash at the end.
        authorities: certificates to trust; empty: those of the machine.
        insecure: its certificate is not checked.
        server_name: in its certificate; empty: that of the URL.
        token_file: a file with the token, which others replace from time to time.
        basic: user and password; None: none.
        program: that prints the token; None: none.
    """

    server: str
    namespace: str = DEFAULT_NAMESPACE
    authorities: str = ""
    insecure: bool = False
    server_name: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    token_file: str = ""
    basic: tuple[str, str] | None = None
    program: ExecProgram | None = None


def find_access(options: KubernetesOptions, environment: Mapping[str, str] = os.environ) -> ApiAccess:
    """Return how to speak to the API server that the options name.

    Without a kubeconfig it is the API server of the cluster in which this process is a pod.

    Raises:
        BadInput: a file is missing or malformed, or has no such context.
    """
    if options.kubeconfig:
        files = [options.kubeconfig]
    else:
        files = [path for path in environment.get("KUBECONFIG", "").split(os.pathsep) if path]
    home = environment.get("HOME")
    if not files and home and (default := Path(home, DEFAULT_FILE)).exists():
        files = [str(default)]
    if files:
        return _read_files([Path(file) for file in files], options.context)
    if options.context:
        raise BadInput(
            f"there is no kubeconfig, so there is no context {options.context}",
            do="name the file with the option kubeconfig",
        )
    return find_access_from_inside(environment)


def find_access_from_inside(environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> ApiAccess:
    """Return how a pod speaks to the API server of its own cluster."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise BadInput(
            "there is no kubeconfig, and this is not a pod of a Kubernetes cluster",
            do="name a file with the option kubeconfig, or with KUBECONFIG",
        )
    return ApiAccess(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        namespace=_read_text(account / "namespace").strip(),
        authorities=_read_text(account / "ca.crt"),
        token_file=str(account / "token"),
    )


def _read_files(paths: list[Path], context: str) -> ApiAccess:
    """Return the access that a context of some kubeconfigs describes; of equal names the first counts."""
    found: dict[str, dict[str, tuple[Any, Path]]] = {"clusters": {}, "users": {}, "contexts": {}}
    for path in paths:
        # As for kubectl, a file of a list may be missing.
        if len(paths) > 1 and not path.exists():
            continue
        document = _read_document(path)
        context = context or str(document.get("current-context") or "")
        for kind, known in found.items():
            for entry in _list_entries(document.get(kind)):
                known.setdefault(str(entry.get("name")), (entry.get(kind.removesuffix("s")), path))
    where = ", ".join(map(str, paths))
    if context not in found["contexts"]:
        raise BadInput(
            f"{where} has no context {context}" if context else f"{where} has no current context",
            do="choose one with the option context; kubectl config get-contexts lists them",
        )
    chosen = _convert(*found["contexts"][context], _Context, f"context {context}")
    if chosen.cluster not in found["clusters"]:
        raise BadInput(f"{where} has no cluster {chosen.cluster}, which context {context} names")
    if chosen.user and chosen.user not in found["users"]:
        raise BadInput(f"{where} has no user {chosen.user}, which context {context} names")
    cluster_entry, cluster_path = found["clusters"][chosen.cluster]
    user_entry, user_path = found["users"].get(chosen.user, ({}, paths[0]))
    cluster = _convert(cluster_entry, cluster_path, _Cluster, f"cluster {chosen.cluster}")
    user = _convert(user_entry, user_path, _User, f"user {chosen.user}")
    _check(cluster, user, where)
    if urlsplit(cluster.server).scheme == "http":
        # As with kubectl, credentials are sent over TLS only.
        return ApiAccess(server=cluster.server.rstrip("/"), namespace=chosen.namespace or DEFAULT_NAMESPACE)
    token_file = str(user_path.parent / user.token_file) if user.token_file else ""
    return ApiAccess(
        server=cluster.server.rstrip("/"),
        namespace=chosen.namespace or DEFAULT_NAMESPACE,
        authorities=_read_pem(
            cluster.certificate_authority_data, cluster.certificate_authority, cluster_path
        ),
        insecure=cluster.insecure_skip_tls_verify,
        server_name=cluster.tls_server_name,
        certificate=_read_pem(user.client_certificate_data, user.client_certificate, user_path),
        key=_read_pem(user.client_key_data, user.client_key, user_path),
        token="" if token_file else user.token,
        token_file=token_file,
        basic=(user.username, user.password) if user.username else None,
        program=None if user.exec is None else _locate_program(user.exec, user_path.parent),
    )


def _check(cluster: _Cluster, user: _User, where: str) -> None:
    parts = urlsplit(cluster.server)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"{where}: {cluster.server!r} is not the URL of an API server")
    if cluster.proxy_url:
        raise BadInput(
            f"{where} has a proxy-url, which is not supported", do="start the controller with HTTPS_PROXY"
        )
    if user.impersonated:
        raise BadInput(
            f"{where} lets its user act as {user.impersonated}, which is not supported",
            do="choose a context with a user of its own",
        )
    if user.auth_provider is not None:
        raise BadInput(
            f"{where} has an auth-provider",
            means="Kubernetes has replaced these by programs that print a token",
            do="let the command line of your cloud write the kubeconfig again: it then has exec",
        )


def _locate_program(program: ExecProgram, folder: Path) -> ExecProgram:
    """Return a program with its whole path: one with a slash is relative to its kubeconfig."""
    if os.sep not in program.command:
        return program
    return msgspec.structs.replace(program, command=str(folder / program.command))


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = read_yaml(_read_text(path))
    except BadInput as error:
        raise BadInput(f"{path}: {error.what}", means=error.means, do=error.do) from error
    if not isinstance(document, dict):
        raise BadInput(f"{path} is not a kubeconfig", do="name another file with the option kubeconfig")
    return document


def _list_entries(entries: object) -> list[dict[str, Any]]:
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _convert(entry: object, path: Path, kind: Any, what: str) -> Any:
    given = entry if isinstance(entry, dict) else {}
    try:
        # Programs write null for what they do not set.
        return msgspec.convert({name: value for name, value in given.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {what}: {error}") from error


def _read_pem(data: str, file: str, path: Path) -> str:
    """Return a certificate or a key, in a kubeconfig or a file beside it; empty: it names none."""
    if not data:
        return _read_text(path.parent / file) if file else ""
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError as error:
        raise BadInput(f"{path} has a certificate or a key that is not in base64") from error


def _read_text(path: Path) -> str:
    """Return the content of a small file."""
    try:
        return read_bytes(path, LARGEST_BYTES).decode()
    except (OSError, Malformed, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"{path} cannot be read: {why}") from error
