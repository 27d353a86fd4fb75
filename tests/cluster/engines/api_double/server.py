"""The HTTP side of the double: lists in pages, watches with bookmarks, rights and quotas."""

import base64
import json
import re
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from elastane.cluster.engines.kubernetes.quantities import parse_quantity
from tests.cluster.engines.api_double.certificate import build_server_context
from tests.cluster.engines.api_double.custom_resources import CustomResources
from tests.cluster.engines.api_double.nodes import Nodes, holds_devices, list_requests
from tests.cluster.engines.api_double.objects import (
    ApiError,
    Change,
    Document,
    Objects,
    fits_fields,
    fits_labels,
)
from tests.cluster.engines.api_double.resources import (
    CUSTOM,
    IN_CLUSTER,
    KINDS,
    KUEUE,
    RESOURCES,
    describe_group,
    describe_groups,
    describe_openapi,
    describe_resources,
)

PATH = re.compile(
    r"/(?:api|apis/(?P<group>[a-z0-9.-]+))/(?P<version>v[a-z0-9]+)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?"
)
AS_TABLE = "as=Table"
APPLY = "application/apply-patch+yaml"
BOOKMARK_S = 1.0
LONGEST_WATCH_S = 1800.0


class ApiDouble:
    """An API server on loopback.

    Attributes:
        token: of the only user.
        forbidden: verbs and resources, such as ``("create", "pods")``, that the user may not use.
        requests: how often each verb and resource was asked for.
        loses_answers: requests are carried out, and the connection is closed without an answer.
        priority_classes: that pods may name.
        hidden_groups: groups of the API that nothing serves.
        webhook: called with each new pod, which it may change; it may raise `ApiError`.
        before_answer: called with the verb and the resource after a request was carried out.
    """

    def __init__(self, objects: Objects, nodes: Nodes, certificate: Path) -> None:
        self._context = build_server_context(certificate)
        self.objects = objects
        self.nodes = nodes
        self.token = secrets.token_hex(8)
        self.forbidden: set[tuple[str, str]] = set()
        self.requests: Counter[tuple[str, str]] = Counter()
        self.loses_answers = False
        self.priority_classes: set[str] = set()
        self.hidden_groups = {KUEUE}
        self.webhook: Callable[[Document], None] = lambda pod: None
        self.quota: dict[str, str] = {}
        self.gone_as_event = True
        self.is_strict = False
        self.before_answer: Callable[[str, str], None] = lambda verb, resource: None
        self._pages: dict[str, tuple[int, list[Document]]] = {}
        self._speaks = threading.Event()
        self._speaks.set()
        self._closing = False
        self.connections: set[socket.socket] = set()
        objects.admit = self._admit
        self.custom = CustomResources(objects)
        objects.convert = self._convert
        self._server: ThreadingHTTPServer | None = None
        self._address = ("127.0.0.1", 0)
        self.start()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._address[1]}"

    def start(self) -> None:
        """Listen, at the same port as before."""
        double = self

        class Handler(RequestHandler):
            api = double

        self._closing = False
        ThreadingHTTPServer.allow_reuse_address = True
        self._server = ThreadingHTTPServer(self._address, Handler)
        self._server.daemon_threads = True
        # A client that does not speak must hold up no other.
        self._server.socket = self._context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self._address = self._server.server_address
        threading.Thread(target=self._server.serve_forever, args=(0.05,)).start()

    def stop(self) -> None:
        """Refuse connections, and end those that are there."""
        self._closing = True
        with self.objects.changed:
            self.objects.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Answer nothing until the context ends; requests that come meanwhile are never carried out."""
        self._speaks.clear()
        try:
            yield
        finally:
            self._speaks.set()

    def wait_until_speaking(self) -> bool:
        """Wait while the server is silent; return whether it always spoke."""
        if self._speaks.is_set():
            return True
        self._speaks.wait()
        return False

    def is_closing(self) -> bool:
        return self._closing

    # -- admission -------------------------------------------------------------------------------------------

    def _admit(self, resource: str, document: Document) -> None:
        if resource == "pods":
            self._admit_pod(document)
        if resource == "secrets":
            data = document.setdefault("data", {})
            for name, text in document.pop("stringData", {}).items():
                data[name] = base64.b64encode(text.encode()).decode()

    def _convert(self, resource: str, document: Document, before: Document | None) -> Document:
        if resource in CUSTOM:
            return self.custom.admit(resource, document, before, strict=self.is_strict)
        return document

    def _admit_pod(self, pod: Document) -> None:
        spec, name = pod["spec"], pod["metadata"]["name"]
        wanted = spec.get("priorityClassName")
        if wanted and wanted not in self.priority_classes:
            message = f'pods "{name}" is forbidden: no PriorityClass with name {wanted} was found'
            raise ApiError(403, "Forbidden", message)
        pod.setdefault("status", {"phase": "Pending"})
        for container in spec["containers"]:
            # Clients may write numbers.
            for quantities in container.get("resources", {}).values():
                quantities.update({key: str(value) for key, value in quantities.items()})
        self.webhook(pod)
        used = {"pods": 0}
        for other in self.objects.list_all("pods"):
            if holds_devices(other):
                used["pods"] += 1000
                for resource, quantity in list_requests(other).items():
                    used[f"requests.{resource}"] = used.get(f"requests.{resource}", 0) + quantity
        asked = {"pods": 1000} | {f"requests.{key}": value for key, value in list_requests(pod).items()}
        for resource, limit in self.quota.items():
            if used.get(resource, 0) + asked.get(resource, 0) > parse_quantity(limit):
                message = f'pods "{name}" is forbidden: exceeded quota: team, limited: {resource}={limit}'
                raise ApiError(403, "Forbidden", message)

    # -- lists -----------------------------------------------------------------------------------------------

    def list_page(self, resource: str, namespace: str, query: dict[str, str]) -> Document:
        with self.objects.changed:
            if token := query.get("continue"):
                version, items = self._pages.pop(token, (0, []))
                if version < self.objects.oldest:
                    raise ApiError(410, "Expired", "The provided continue parameter is too old")
            else:
                version = self.objects.version
                found = self.objects.list_all(resource, namespace)
                items = [document for document in found if fits(document, query)]
            limit = int(query.get("limit") or 0) or len(items)
            metadata: dict[str, Any] = {"resourceVersion": str(version)}
            if len(items) > limit:
                metadata["continue"] = secrets.token_hex(8)
                metadata["remainingItemCount"] = len(items) - limit
                self._pages[metadata["continue"]] = (version, items[limit:])
        return {
            "kind": f"{KINDS[resource]}List",
            "apiVersion": RESOURCES[resource].api_version,
            "metadata": metadata,
            "items": [describe_object(resource, item) for item in items[:limit]],
        }

    def find_events(
        self, resource: str, namespace: str, query: dict[str, str], since: int
    ) -> list[tuple[str, Document]]:
        """Return what a watch says about the writes after a version."""
        events = []
        for change in self.objects.list_changes(resource, since):
            event = describe_change(change, namespace, query)
            if event is not None:
                events.append(event)
        return events


def describe_object(resource: str, document: Document) -> Document:
    return {"kind": KINDS[resource], "apiVersion": RESOURCES[resource].api_version, **document}


def fits(document: Document, query: dict[str, str]) -> bool:
    labels = document["metadata"].get("labels") or {}
    return fits_labels(query.get("labelSelector", ""), labels) and fits_fields(
        query.get("fieldSelector", ""), document
    )


def describe_change(change: Change, namespace: str, query: dict[str, str]) -> tuple[str, Document] | None:
    """Return the event of a watch for a write: an object that no longer fits the selectors is deleted."""

    def is_seen(document: Document | None) -> bool:
        return (
            document is not None
            and (not namespace or document["metadata"].get("namespace") == namespace)
            and fits(document, query)
        )

    before, after = is_seen(change.before), is_seen(change.after)
    if after:
        return ("MODIFIED" if before else "ADDED"), change.after
    if before:
        last = {**(change.after or change.before)}
        last["metadata"] = {**last["metadata"], "resourceVersion": str(change.version)}
        return "DELETED", last
    return None


def decode_body(body: bytes) -> Document:
    try:
        return json.loads(body) if body else {}
    except ValueError:
        message = "the body of the request was in an unknown format - accepted media types: application/json"
        raise ApiError(415, "UnsupportedMediaType", message) from None


class RequestHandler(BaseHTTPRequestHandler):
    """Answers one request."""

    api: ApiDouble
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.api.connections.add(self.connection)

    def finish(self) -> None:
        self.api.connections.discard(self.connection)
        # A client may have gone without a word.
        with suppress(OSError):
            super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def do_PATCH(self) -> None:
        self._answer("PATCH")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self.is_new = False
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        # A connection may have been accepted while the server stopped.
        if not self.api.wait_until_speaking() or self.api.is_closing():
            self.close_connection = True
            return
        try:
            self._authenticate()
            answer = self._do(method, parts.path, query, decode_body(body))
        except ApiError as error:
            self._send(error.code, error.status)
            return
        if answer is not None:
            self._send(201 if method == "POST" or self.is_new else 200, answer)

    def _authenticate(self) -> None:
        if self.headers.get("Authorization") != f"Bearer {self.api.token}":
            raise ApiError(401, "Unauthorized", "Unauthorized")

    def _send(self, code: int, answer: Document | str) -> None:
        if self.api.loses_answers:
            self.close_connection = True
            return
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        kind = "text/plain" if isinstance(answer, str) else "application/json"
        with suppress(OSError):
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    def _do(self, method: str, path: str, query: dict[str, str], body: Document) -> Document | str | None:
        if (found := self._describe_api(path)) is not None:
            return found
        if path.endswith("/selfsubjectaccessreviews"):
            return self._review(body)
        match = PATH.fullmatch(path)
        if match is None or not self._is_served(match):
            raise ApiError(404, "NotFound", "the server could not find the requested resource")
        namespace, resource = match["namespace"] or "", match["resource"]
        name, sub = match["name"] or "", match["sub"] or ""
        if name and resource in IN_CLUSTER:
            namespace = ""
        verb = self._find_verb(method, name, query)
        self.api.requests[verb, resource] += 1
        if (verb, resource) in self.api.forbidden or (verb, f"{resource}@{namespace}") in self.api.forbidden:
            message = f'{resource} is forbidden: User "ada" cannot {verb} resource "{resource}"'
            raise ApiError(403, "Forbidden", message)
        answer = self._carry_out(verb, resource, namespace, name, sub, method, query, body)
        self.api.before_answer(verb, resource)
        return answer

    def _carry_out(
        self,
        verb: str,
        resource: str,
        namespace: str,
        name: str,
        sub: str,
        method: str,
        query: dict[str, str],
        body: Document,
    ) -> Document | str | None:
        if sub:
            return self._do_sub(resource, sub, namespace, name, method, body)
        objects = self.api.objects
        self.api.is_strict = query.get("fieldValidation") == "Strict"
        wants_table = AS_TABLE in self.headers.get("Accept", "") and resource in CUSTOM
        match verb:
            case "list" if wants_table:
                page = self.api.list_page(resource, namespace, query)
                return self.api.custom.build_table(
                    resource, page["items"], page["metadata"]["resourceVersion"]
                )
            case "get" if wants_table:
                found = objects.get(resource, namespace, name)
                return self.api.custom.build_table(resource, [found], found["metadata"]["resourceVersion"])
            case "list":
                return self.api.list_page(resource, namespace, query)
            case "watch":
                self._watch(resource, namespace, query)
                return None
            case "get":
                return self._complete(resource, objects.get(resource, namespace, name))
            case "create":
                dry = query.get("dryRun") == "All"
                return self._complete(resource, objects.create(resource, namespace, body, dry=dry))
            case "update":
                return self._complete(resource, objects.replace(resource, namespace, body))
            case "patch" if self.headers.get("Content-Type") == APPLY:
                manager = query.get("fieldManager", "")
                document, self.is_new = objects.apply(resource, namespace, name, body, manager)
                return self._complete(resource, document)
            case "patch":
                return self._complete(resource, objects.patch(resource, namespace, name, body))
            case _:
                return self._complete(resource, objects.delete(resource, namespace, name, body))

    def _complete(self, resource: str, document: Document) -> Document:
        return describe_object(resource, document)

    def _is_served(self, match: re.Match[str]) -> bool:
        resource = RESOURCES.get(match["resource"])
        asked = match["group"] or "", match["version"]
        if (
            asked[0] in self.api.hidden_groups
            or resource is None
            or (resource.group, resource.version) != asked
        ):
            return False
        self.api.custom.find_version(match["resource"])
        return True

    def _find_verb(self, method: str, name: str, query: dict[str, str]) -> str:
        if method == "GET" and not name:
            return "watch" if query.get("watch") in ("true", "1") else "list"
        return {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[method]

    def _do_sub(
        self, resource: str, sub: str, namespace: str, name: str, method: str, body: Document
    ) -> Document | str:
        objects = self.api.objects
        if sub == "status" and method == "PATCH":
            return self._complete(resource, objects.patch(resource, namespace, name, body, is_status=True))
        if sub == "scale":
            return self._scale(resource, namespace, name, method, body)
        pod = objects.get("pods", namespace, name)
        if sub == "log":
            path = self.api.nodes.log(pod)
            return path.read_text() if path.exists() else ""
        if sub == "eviction":
            with objects.changed:
                condition = {
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "EvictionByEvictionAPI",
                    "message": "Eviction API: evicting",
                }
                conditions = [*pod.get("status", {}).get("conditions", ()), condition]
                objects.patch("pods", namespace, name, {"status": {"conditions": conditions}})
                objects.delete("pods", namespace, name, body.get("deleteOptions") or {})
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    def _scale(self, resource: str, namespace: str, name: str, method: str, body: Document) -> Document:
        objects, custom = self.api.objects, self.api.custom
        with objects.changed:
            found = objects.get(resource, namespace, name)
            if method != "GET":
                version = body.get("metadata", {}).get("resourceVersion")
                scaled = custom.scale(resource, found, body["spec"]["replicas"])
                scaled["metadata"] |= {"resourceVersion": version} if version else {}
                found = objects.replace(resource, namespace, scaled)
            return custom.build_scale(resource, found)

    def _review(self, body: Document) -> Document:
        wanted = body["spec"]["resourceAttributes"]
        name = wanted["resource"]
        scoped = (wanted["verb"], f"{name}@{wanted.get('namespace', '')}")
        allowed = (wanted["verb"], name) not in self.api.forbidden and scoped not in self.api.forbidden
        return {**body, "status": {"allowed": allowed}}

    # -- watches ---------------------------------------------------------------------------------------------

    def _watch(self, resource: str, namespace: str, query: dict[str, str]) -> None:
        objects = self.api.objects
        version = query.get("resourceVersion", "")
        first: list[tuple[str, Document]] = []
        with objects.changed:
            if version in ("", "0"):
                since = objects.version
                first = [
                    ("ADDED", found) for found in objects.list_all(resource, namespace) if fits(found, query)
                ]
            else:
                since = int(version)
        if not self.api.gone_as_event:
            # Before the status is sent, it is one of HTTP.
            objects.list_changes(resource, since)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with suppress(OSError):
            for kind, document in first:
                self._write_event(kind, self._complete(resource, document))
            self._follow(resource, namespace, query, since)
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def _follow(self, resource: str, namespace: str, query: dict[str, str], since: int) -> None:
        objects = self.api.objects
        until_s = time.monotonic() + float(query.get("timeoutSeconds") or LONGEST_WATCH_S)
        while not self.api.is_closing() and time.monotonic() < until_s:
            self.api.wait_until_speaking()
            with objects.changed:
                try:
                    events = self.api.find_events(resource, namespace, query, since)
                except ApiError as error:
                    self._write_event("ERROR", error.status)
                    return
                since = objects.version
                if not events:
                    objects.changed.wait(BOOKMARK_S)
                    if objects.version == since and query.get("allowWatchBookmarks") == "true":
                        events = [("BOOKMARK", {"metadata": {"resourceVersion": str(since)}})]
            for kind, document in events:
                self._write_event(kind, self._complete(resource, document))

    def _write_event(self, kind: str, document: Document) -> None:
        line = json.dumps({"type": kind, "object": document}).encode() + b"\n"
        self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        self.wfile.flush()

    # -- what clients look up --------------------------------------------------------------------------------

    def _describe_api(self, path: str) -> Document | None:
        """Return what a client looks up before it asks for anything."""
        if path == "/version":
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0-double"}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return describe_groups(self._list_groups())
        if path == "/api/v1":
            return describe_resources("v1")
        if path == "/openapi/v3":
            groups = self._list_groups()
            served = {one.api_version for one in RESOURCES.values() if not one.group or one.group in groups}
            names = [f"apis/{one}" if "/" in one else f"api/{one}" for one in sorted(served)]
            return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}"} for name in names}}
        if path.startswith("/openapi/v3/"):
            return describe_openapi(
                path.removeprefix("/openapi/v3/").removeprefix("apis/").removeprefix("api/")
            )
        _, _, group = path.partition("/apis/")
        name, _, version = group.partition("/")
        if name in self._list_groups() and "/" not in version:
            return describe_resources(group) if version else describe_group(name)
        return None

    def _list_groups(self) -> list[str]:
        groups = dict.fromkeys(one.group for one in RESOURCES.values() if one.group)
        groups = [group for group in groups if group not in self.api.hidden_groups]
        defined = {name.partition(".")[2] for name in CUSTOM.values()}
        there = {one["spec"]["group"] for one in self.api.objects.list_all("customresourcedefinitions")}
        return [group for group in groups if group not in defined or group in there]
