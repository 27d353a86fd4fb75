"""The resources of Kubernetes of which jobs were made: queries and changes of their rows."""

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, delete, insert, select, update

from elastane.cluster.controller.elastic_jobs.stored_resource import StoredElasticJob
from elastane.cluster.controller.store.columns import JsonColumn, encode_json
from elastane.cluster.controller.store.tables import elastic_jobs
from elastane.common.untrusted_data import Malformed

_decode_options: JsonColumn[dict[str, str]] = JsonColumn(dict[str, str])


def list_elastic_jobs(tx: Connection) -> tuple[StoredElasticJob, ...]:
    """Return the resources of all engines."""
    return tuple(map(_decode_elastic_job, tx.execute(select(elastic_jobs))))


def find_elastic_job(tx: Connection, uid: str) -> StoredElasticJob | None:
    row = tx.execute(select(elastic_jobs).where(elastic_jobs.c.uid == uid)).one_or_none()
    return None if row is None else _decode_elastic_job(row)


def map_agent_options(tx: Connection) -> Mapping[str, Mapping[str, str]]:
    """Return what the agents of each job that was made of a resource get of its template, by job."""
    found = tx.execute(select(elastic_jobs.c.job, elastic_jobs.c.options))
    return {row.job: _read_options(row.options) for row in found}


def insert_elastic_job(tx: Connection, resource: StoredElasticJob) -> None:
    tx.execute(insert(elastic_jobs).values(_encode_elastic_job(resource)))


def write_elastic_job(tx: Connection, resource: StoredElasticJob) -> None:
    """Store a changed resource."""
    here = update(elastic_jobs).where(elastic_jobs.c.uid == resource.uid)
    tx.execute(here.values(_encode_elastic_job(resource)))


def forget_elastic_job(tx: Connection, uid: str) -> None:
    tx.execute(delete(elastic_jobs).where(elastic_jobs.c.uid == uid))


def _encode_elastic_job(resource: StoredElasticJob) -> dict[str, Any]:
    return msgspec.structs.asdict(resource) | {"options": encode_json(resource.options)}


def _decode_elastic_job(row: Row[Any]) -> StoredElasticJob:
    return StoredElasticJob(**{**row._mapping, "options": _read_options(row.options)})


def _read_options(text: object) -> Mapping[str, str]:
    try:
        return _decode_options(text)
    except Malformed:
        # The next change of the resource writes them again; meanwhile its pods have no template.
        return {}
