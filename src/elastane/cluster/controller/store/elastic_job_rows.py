"""The resources of Kubernetes of which jobs were made: queries and changes of their rows."""

from collections.abc import Collection, Mapping

import msgspec
from sqlalchemy import Connection, delete, insert, select, update

from elastane.cluster.controller.elastic_jobs.stored_resource import StoredElasticJob
from elastane.cluster.controller.store.columns import JsonColumn, encode_json
from elastane.cluster.controller.store.tables import elastic_jobs
from elastane.common.untrusted_data import Malformed

_decode_options: JsonColumn[dict[str, str]] = JsonColumn(dict[str, str])
COLUMNS = tuple(elastic_jobs.c[name] for name in StoredElasticJob.__struct_fields__)
"""All but the options, which may be long."""


def list_elastic_jobs(tx: Connection) -> tuple[StoredElasticJob, ...]:
    """Return the resources of all engines."""
    return tuple(StoredElasticJob(**row._mapping) for row in tx.execute(select(*COLUMNS)))


def find_elastic_job(tx: Connection, uid: str) -> StoredElasticJob | None:
    row = tx.execute(select(*COLUMNS).where(elastic_jobs.c.uid == uid)).one_or_none()
    return None if row is None else StoredElasticJob(**row._mapping)


def map_agent_options(tx: Connection, names: Collection[str]) -> Mapping[str, Mapping[str, str]]:
    """Return what the agents of each job that was made of a resource get of its template, by job."""
    query = select(elastic_jobs.c.job, elastic_jobs.c.options).where(elastic_jobs.c.job.in_(names))
    return {row.job: _read_options(row.options) for row in tx.execute(query)}


def insert_elastic_job(tx: Connection, resource: StoredElasticJob, options: Mapping[str, str]) -> None:
    """Store a resource, and what the agents of its job get of its template."""
    values = msgspec.structs.asdict(resource) | {"options": encode_json(options)}
    tx.execute(insert(elastic_jobs).values(values))


def write_elastic_job(
    tx: Connection, resource: StoredElasticJob, options: Mapping[str, str] | None = None
) -> None:
    """Store a changed resource; None: its options are as before."""
    values = msgspec.structs.asdict(resource)
    values |= {} if options is None else {"options": encode_json(options)}
    tx.execute(update(elastic_jobs).where(elastic_jobs.c.uid == resource.uid).values(values))


def forget_elastic_job(tx: Connection, uid: str) -> None:
    tx.execute(delete(elastic_jobs).where(elastic_jobs.c.uid == uid))


def _read_options(text: object) -> Mapping[str, str]:
    try:
        return _decode_options(text)
    except Malformed:
        # The next change of the resource writes them again; meanwhile its pods have no template.
        return {}
