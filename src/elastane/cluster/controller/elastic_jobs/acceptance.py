"""How the job of a resource is made and changed: in one transaction, so that neither is done twice."""

from collections.abc import Callable
from pathlib import Path

import msgspec
from sqlalchemy import Connection

from elastane.cluster.controller.admission import check_spec
from elastane.cluster.controller.agents.agent_job import locate_run_dir
from elastane.cluster.controller.elastic_jobs.stored_resource import StoredElasticJob
from elastane.cluster.controller.job_changes import add_job, change_job
from elastane.cluster.controller.jobs.stored_job import JobNameTaken, require_readable
from elastane.cluster.controller.store import elastic_job_rows, history, jobs
from elastane.cluster.engines.kubernetes.elastic_jobs.job import (
    DescribedJob,
    change_described_job,
    describe_job,
    propose_names,
)
from elastane.cluster.engines.kubernetes.elastic_jobs.resource import ElasticJob
from elastane.cluster.nouns.differences import add_words, describe_spec_change
from elastane.cluster.nouns.pools import Pool


class JobOwner(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of the jobs of an engine's resources, and where they run.

    Args:
        place: API server and namespace of the resources.
        user: of the jobs; no token has such a name.
        home: directory of the controller.
        check_team: raises `BadInput` if there is no system user for the jobs of a team.
    """

    engine: str
    place: str
    team: str
    user: str
    pools: tuple[Pool, ...]
    home: Path
    check_team: Callable[[str], object]

    def describe(self, resource: ElasticJob, name: str) -> DescribedJob:
        """Return the job of a resource under a name."""
        return describe_job(resource, name, team=self.team, engine=self.engine, pools=self.pools)


def make_or_change_job(tx: Connection, resource: ElasticJob, owner: JobOwner, now_s: float) -> None:
    """Make the job of a resource, or give it what the resource says now."""
    kept = elastic_job_rows.find_elastic_job(tx, resource.uid)
    if kept is None:
        _make_job(tx, resource, owner, now_s)
    else:
        _change_job(tx, resource, kept, owner, now_s)


def _make_job(tx: Connection, resource: ElasticJob, owner: JobOwner, now_s: float) -> None:
    name = _choose_name(tx, resource, owner.home)
    described = owner.describe(resource, name)
    check_spec(described.spec)
    add_job(tx, described.spec, owner.user, now_s, owner.check_team)
    made = StoredElasticJob(
        uid=resource.uid,
        engine=owner.engine,
        place=owner.place,
        name=resource.name,
        job=name,
        generation=resource.generation,
    )
    elastic_job_rows.insert_elastic_job(tx, made, described.options)


def _choose_name(tx: Connection, resource: ElasticJob, home: Path) -> str:
    """Return a name for the job of a resource that no other job has or had."""
    names = propose_names(resource)
    for name in names:
        has_files = jobs.find_left_files(tx, name) or locate_run_dir(home, name).exists()
        if jobs.find_job(tx, name) is None and not has_files:
            return name
    raise JobNameTaken(
        f"the names {' and '.join(names)} are taken",
        do="delete the ElasticJob, and make it again under another name",
    )


def _change_job(
    tx: Connection, resource: ElasticJob, kept: StoredElasticJob, owner: JobOwner, now_s: float
) -> None:
    before = jobs.find_job(tx, kept.job)
    if before is None or before.has_ended:
        return
    require_readable(before)
    described = owner.describe(resource, kept.job)
    spec = change_described_job(before.spec, described.spec)
    if spec != before.spec:
        after = change_job(tx, before, spec)
        words = describe_spec_change(before.spec, after.spec)
        message = add_words(f"{owner.user} changed {kept.job}", words)
        history.append_event(tx, "job.amended", message, now_s, team=after.team, job=after.name)
    changed = msgspec.structs.replace(kept, generation=resource.generation)
    elastic_job_rows.write_elastic_job(tx, changed, described.options)
