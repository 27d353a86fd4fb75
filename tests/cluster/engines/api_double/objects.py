"""The objects of a double of the API server of Kubernetes: versions, history, selectors and deletion.

Every write gets the next resource version. A watch reads the history from a version on; what was compacted
is answered with 410, as `etcd` and the API server do.
"""

import copy
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from tests.cluster.engines.api_double.resources import IN_CLUSTER, KINDS

Document = dict[str, Any]
Key = tuple[str, str]
"""Namespace, which is empty for nodes and namespaces, and name."""
DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)
TERM = re.compile(
    r"\s*(?:(?P<no>!)(?P<absent>[\w./-]+)|(?P<key>[\w./-]+)\s*"
    r"(?:(?P<op>==|=|!=)\s*(?P<value>[^,\s]*)|(?P<set>in|notin)\s*\((?P<values>[^)]*)\))?)\s*(?:,|\Z)"
)


class ApiError(Exception):
    """An answer other than success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


class Change(NamedTuple):
    """A write: the object before and after it; None: it was not there, or is not there any more."""

    version: int
    resource: str
    before: Document | None
    after: Document | None


def format_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def now() -> datetime:
    return datetime.now(UTC)


def fits_labels(selector: str, labels: dict[str, str]) -> bool:
    """Return whether labels meet a label selector."""
    for term in parse_terms(selector):
        found = labels.get(term["key"] or term["absent"])
        if term["no"]:
            fits = found is None
        elif term["set"]:
            values = [value.strip() for value in term["values"].split(",")]
            fits = (found in values) == (term["set"] == "in")
        elif term["op"]:
            fits = (found == term["value"]) == (term["op"] != "!=")
        else:
            fits = found is not None
        if not fits:
            return False
    return True


def fits_fields(selector: str, document: Document) -> bool:
    """Return whether an object meets a field selector."""
    for term in parse_terms(selector):
        found: Any = document
        for step in term["key"].split("."):
            found = (found or {}).get(step)
        if ((found or "") == term["value"]) == (term["op"] == "!="):
            return False
    return True


def parse_terms(selector: str) -> list[dict[str, str]]:
    terms, place = [], 0
    while place < len(selector):
        match = TERM.match(selector, place)
        if match is None:
            raise ApiError(400, "BadRequest", f"unable to parse requirement: {selector}")
        terms.append({name: value or "" for name, value in match.groupdict().items()})
        place = match.end()
    return terms


def merge(target: Any, patch: Any) -> Any:
    """Return a JSON merge patch applied: RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge(result.get(name), value)
    return result


def list_fields(document: Document, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the value of each field that has no fields of its own."""
    for name, value in document.items():
        if isinstance(value, dict) and value:
            yield from list_fields(value, (*path, name))
        else:
            yield (*path, name), value


class Objects:
    """All objects, by resource.

    Attributes:
        changed: notified at each write; also the lock of everything here.
        admit: called with the resource and the object before one is created; it may raise `ApiError`.
        convert: returns the object to store in place of one, given that before it; it may raise `ApiError`.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.admit: Callable[[str, Document], None] = lambda resource, document: None
        self.convert: Callable[[str, Document, Document | None], Document] = lambda resource, new, old: new
        self.managers: dict[tuple[str, str, str], dict[tuple[str, ...], str]] = {}
        """The manager that has applied each field of an object."""
        self.version = 1000
        self.oldest = self.version
        self.history: list[Change] = []
        self._found: dict[str, dict[Key, Document]] = {resource: {} for resource in KINDS}

    # -- reading ---------------------------------------------------------------------------------------------

    def get(self, resource: str, namespace: str, name: str) -> Document:
        with self.changed:
            try:
                return copy.deepcopy(self._found[resource][namespace, name])
            except KeyError:
                raise ApiError(404, "NotFound", f'{resource} "{name}" not found') from None

    def find(self, resource: str, namespace: str, name: str) -> Document | None:
        with self.changed:
            return copy.deepcopy(self._found[resource].get((namespace, name)))

    def list_all(self, resource: str, namespace: str = "") -> list[Document]:
        with self.changed:
            return [
                copy.deepcopy(document)
                for (space, _), document in sorted(self._found[resource].items())
                if not namespace or space == namespace
            ]

    def list_changes(self, resource: str, since: int) -> list[Change]:
        """Return the writes after a version; 410: they are not known any more."""
        with self.changed:
            if since < self.oldest:
                raise ApiError(410, "Expired", f"too old resource version: {since} ({self.oldest})")
            return [
                change for change in self.history if change.version > since and change.resource == resource
            ]

    def compact(self) -> None:
        """Forget the history, as etcd does every few minutes."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.history.clear()
            self.changed.notify_all()

    # -- writing ---------------------------------------------------------------------------------------------

    def create(self, resource: str, namespace: str, document: Document, *, dry: bool = False) -> Document:
        with self.changed:
            document = copy.deepcopy(document)
            metadata = document.setdefault("metadata", {})
            name = metadata.get("name", "")
            if not DNS_NAME.fullmatch(name):
                raise ApiError(422, "Invalid", f'{KINDS[resource]} "{name}" is invalid: metadata.name')
            if resource not in IN_CLUSTER:
                self._check_namespace(namespace, metadata)
            if (namespace, name) in self._found[resource]:
                raise ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists')
            self.admit(resource, document)
            document = self.convert(resource, document, None)
            metadata = document["metadata"]
            metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": format_time(now())}
            metadata |= {"namespace": namespace} if namespace else {}
            return document if dry else self._write(resource, (namespace, name), document)

    def _check_namespace(self, namespace: str, metadata: Document) -> None:
        if metadata.get("namespace", namespace) != namespace:
            raise ApiError(400, "BadRequest", "the namespace of the object is not that of the request")
        if (found := self._found["namespaces"].get(("", namespace))) is None:
            raise ApiError(404, "NotFound", f'namespaces "{namespace}" not found')
        if found["metadata"].get("deletionTimestamp"):
            raise ApiError(
                403,
                "Forbidden",
                f"unable to create new content in namespace {namespace} because it is being terminated",
            )

    def replace(
        self, resource: str, namespace: str, document: Document, *, is_status: bool = False
    ) -> Document:
        """Write an object, or its status only; 409: it has changed since it was read."""
        with self.changed:
            name = document["metadata"]["name"]
            before = self.get(resource, namespace, name)
            version = document["metadata"].get("resourceVersion")
            if version and version != before["metadata"]["resourceVersion"]:
                raise ApiError(
                    409,
                    "Conflict",
                    f'Operation cannot be fulfilled on {resource} "{name}": the object has been modified',
                )
            document = copy.deepcopy(document)
            for field in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"):
                if field in before["metadata"]:
                    document["metadata"][field] = before["metadata"][field]
            if is_status:
                document = {**before, "status": document.get("status", {})}
            else:
                document = self.convert(resource, document, before)
            after = self._write(resource, (namespace, name), document)
            if after["metadata"].get("deletionGracePeriodSeconds") == 0:
                self._remove_if_free(resource, (namespace, name))
            return after

    def patch(
        self, resource: str, namespace: str, name: str, patch: Document, *, is_status: bool = False
    ) -> Document:
        with self.changed:
            before = self.get(resource, namespace, name)
            wanted = patch.get("metadata", {}).get("uid", before["metadata"]["uid"])
            if wanted != before["metadata"]["uid"]:
                raise ApiError(409, "Conflict", f'Precondition failed: UID of {resource} "{name}" differs')
            return self.replace(resource, namespace, merge(before, patch), is_status=is_status)

    def apply(
        self, resource: str, namespace: str, name: str, document: Document, manager: str
    ) -> tuple[Document, bool]:
        """Apply a document as a manager of fields; return the object, and whether it is new.

        409: another manager has set one of its fields to something else. Lists are one field each.
        """
        with self.changed:
            before = self.find(resource, namespace, name)
            owners = self.managers.setdefault((resource, namespace, name), {})
            wanted = dict(list_fields(document))
            there = dict(list_fields(before or {}))
            for path, value in wanted.items():
                owner = owners.get(path, manager)
                if owner != manager and there.get(path) != value:
                    message = f'Apply failed with 1 conflict: conflict with "{owner}": .{".".join(path)}'
                    raise ApiError(409, "Conflict", message)
            if before is None:
                owners.clear()
                after = self.create(resource, namespace, document)
            else:
                merged = merge(before, document)
                after = before if merged == before else self.replace(resource, namespace, merged)
            for path in wanted:
                owners.setdefault(path, manager)
            return after, before is None

    def delete(self, resource: str, namespace: str, name: str, options: Document) -> Document:
        """Ask for the deletion of an object: a pod on a node gets time, everything else goes at once."""
        with self.changed:
            document = self.get(resource, namespace, name)
            metadata = document["metadata"]
            wanted = options.get("preconditions") or {}
            if wanted.get("uid", metadata["uid"]) != metadata["uid"]:
                raise ApiError(
                    409, "Conflict", f'Operation cannot be fulfilled on {resource} "{name}": the UID differs'
                )
            grace_s = self._choose_grace_s(resource, document, options.get("gracePeriodSeconds"))
            before_s = metadata.get("deletionGracePeriodSeconds")
            if before_s is not None and grace_s >= before_s:
                return document
            metadata["deletionGracePeriodSeconds"] = grace_s
            metadata["deletionTimestamp"] = format_time(now() + timedelta(seconds=grace_s))
            document = self._write(resource, (namespace, name), document)
            if grace_s == 0:
                self._remove_if_free(resource, (namespace, name))
            return document

    def _choose_grace_s(self, resource: str, document: Document, wanted_s: int | None) -> int:
        if resource != "pods" or not document["spec"].get("nodeName"):
            return 0
        if document.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        return document["spec"].get("terminationGracePeriodSeconds", 30) if wanted_s is None else wanted_s

    def _remove_if_free(self, resource: str, key: Key) -> None:
        document = self._found[resource][key]
        if document["metadata"].get("finalizers"):
            return
        self._write(resource, key, None)
        # What it owns goes with it.
        for owned, documents in self._found.items():
            for other in list(documents):
                owners = documents[other]["metadata"].get("ownerReferences", ()) if other in documents else ()
                rest = [owner for owner in owners if owner["uid"] != document["metadata"]["uid"]]
                if rest and len(rest) < len(owners):
                    # It goes with the last of its owners.
                    kept = copy.deepcopy(documents[other])
                    kept["metadata"]["ownerReferences"] = rest
                    self._write(owned, other, kept)
                elif owners and not rest:
                    self._write(owned, other, None)

    def _write(self, resource: str, key: Key, document: Document | None) -> Document:
        before = self._found[resource].get(key)
        self.version += 1
        if document is None:
            assert before is not None
            # The last state of a removed object has the version of its removal.
            last = copy.deepcopy(before)
            last["metadata"]["resourceVersion"] = str(self.version)
            del self._found[resource][key]
            self.history.append(Change(self.version, resource, last, None))
        else:
            document = copy.deepcopy(document)
            document["metadata"]["resourceVersion"] = str(self.version)
            self._found[resource][key] = document
            self.history.append(Change(self.version, resource, before, document))
        self.changed.notify_all()
        return copy.deepcopy(document or before)
