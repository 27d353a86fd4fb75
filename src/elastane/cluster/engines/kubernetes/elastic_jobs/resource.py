"""An `ElasticJob`, as the API server shows it. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from elastane.common.untrusted_data import Decoder, Malformed

GROUP, VERSION, KIND, PLURAL = "elastane.dev", "v1alpha1", "ElasticJob", "elasticjobs"
API_VERSION = f"{GROUP}/{VERSION}"
LARGEST_RESOURCE_BYTES = 4 << 20
"""More than an API server stores of one object."""


class ResourceCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A condition of a resource, as `kubectl wait` and `kubectl describe` read it.

    Args:
        status: "True" or "False".
        reason: one word.
        message: a sentence, or several.
        last_transition_time: when the status became what it is.
    """

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class ElasticJob(msgspec.Struct, frozen=True, kw_only=True):
    """A resource.

    Args:
        uid: unique for ever; one that is deleted and made again has another.
        version: of the object, for changes that must not overwrite others.
        generation: grows with every change of its spec.
        finalizers: it is removed when it has none left.
        is_deleting: its deletion has been asked for.
        spec: JSON, as people wrote it.
        status: as it was written last; empty: it has none, or it cannot be read.
    """

    name: str
    namespace: str
    uid: str
    version: str
    generation: int = 0
    labels: Mapping[str, str] = {}
    finalizers: tuple[str, ...] = ()
    is_deleting: bool = False
    spec: bytes = b"{}"
    status: Mapping[str, Any] = {}

    @property
    def conditions(self) -> Mapping[str, ResourceCondition]:
        """The conditions of its status by type; those that cannot be read are left out."""
        try:
            found = msgspec.convert(self.status.get("conditions") or [], list[ResourceCondition])
        except msgspec.ValidationError:
            return {}
        return {condition.type: condition for condition in found}


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    namespace: str
    uid: str
    resource_version: str
    generation: int = 0
    labels: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None
    deletion_timestamp: datetime | None = None


class _Resource(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


_decode: Decoder[_Resource] = Decoder(_Resource, at_most_bytes=LARGEST_RESOURCE_BYTES)
_decode_status: Decoder[dict[str, Any]] = Decoder(dict[str, Any])


def decode_elastic_job(document: bytes) -> ElasticJob | None:
    """Return a resource; None: it has no metadata that can be read."""
    try:
        found = _decode(document)
    except Malformed:
        return None
    try:
        status = _decode_status(bytes(found.status))
    except Malformed:
        status = {}
    metadata = found.metadata
    return ElasticJob(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        version=metadata.resource_version,
        generation=metadata.generation,
        labels=metadata.labels or {},
        finalizers=metadata.finalizers or (),
        is_deleting=metadata.deletion_timestamp is not None,
        spec=bytes(found.spec),
        status=status,
    )


def find_access_path(namespace: str, name: str = "", sub: str = "") -> str:
    """Return the path of the resources of a namespace, of one of them, or of a part of it."""
    path = f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}"
    return "/".join(filter(None, (path, name, sub)))
