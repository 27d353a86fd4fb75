"""Elastic jobs for people inside a Ray cluster, such as in a notebook or a job of Ray.

```python
import elastane.ray

with elastane.ray.submit("train.py", num_workers=(1, 8), args=["--lr", "3e-4"]) as job:
    for event in job.follow():
        print(event.message)
```

A controller starts the workers there, by an engine of kind ray.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from elastane.cluster.client.context import connect, find_team_of
from elastane.cluster.client.job_handle import JobHandle, build_policy
from elastane.cluster.client.ray_submission import (
    ENGINE,
    check_engine,
    choose_kinds,
    find_controller_of_user,
    find_engine,
    find_ray_address,
    locate_script,
)
from elastane.cluster.nouns.job_checks import check_job_spec
from elastane.cluster.nouns.jobs import JobSpec, JobTraining, WorkerResources
from elastane.cluster.nouns.pools import Pool
from elastane.common.generated_names import generate_name

__all__ = ["JobHandle", "submit"]


def submit(
    script: str | Path,
    *,
    num_workers: int | tuple[int, int] = 1,
    args: Sequence[str] = (),
    name: str = "",
    team: str = "",
    env: Mapping[str, str] | None = None,
    training: JobTraining | None = None,
    kinds: Sequence[str] = (),
    devices_per_worker: int = 1,
    engine: str = ENGINE,
) -> JobHandle:
    """Submit a training script as an elastic job to the controller of this user, to train in Ray.

    The script begins with `elastane.join`. It is run by its path, in its own folder, on every node that gets
    a worker: the nodes share this path. The controller is the one that ``elastane`` commands use.

    Args:
        script: a relative path starts at the current directory.
        num_workers: or ``(fewest, most)``; the job grows as far as there are devices for it.
        args: arguments of the script.
        name: of the job; empty: generated.
        team: that owns the job; empty: that of the user.
        env: additional environment variables of the workers.
        training: seed, threads, checkpoints and others.
        kinds: acceptable kinds of devices; empty: those that only pools of the engine have.
        devices_per_worker: how many devices a worker has.
        engine: of kind ray, which an operator has declared.

    Returns:
        The job, which goes on when this process ends.

    Raises:
        BadInput: there is no controller, no such engine, no pool in it, or no such script; or the engine is
            for another Ray cluster.
        RequestRefused: the controller refused the job.
        ControllerUnreachable: the controller does not answer.
    """
    path = locate_script(script)
    address = find_ray_address()
    context = find_controller_of_user(address)
    cluster = connect(context)
    try:
        if not kinds:
            check_engine(find_engine(cluster, engine), engine, address)
            kinds = choose_kinds(cluster.documents.list(Pool), engine)
        spec = JobSpec(
            name=name or generate_name(path.stem),
            team=team or find_team_of(context),
            script=str(path),
            args=tuple(args),
            env=dict(env or {}),
            resources_per_worker=WorkerResources(devices=devices_per_worker, kinds=tuple(kinds)),
            elastic_policy=build_policy(num_workers),
            training=training or JobTraining(),
        )
        job = cluster.jobs.submit(check_job_spec(spec))
    except BaseException:
        cluster.close()
        raise
    return JobHandle(cluster, job.name)
