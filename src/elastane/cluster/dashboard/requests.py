"""Changes of jobs that pages ask for. The controller decides whether the token may make them."""

from collections.abc import Callable, Mapping

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.dashboard.feed import ClusterFeed
from elastane.common.errors import BadField
from elastane.common.untrusted_data import read_number

Form = Mapping[str, str]
LARGEST, LONGEST = 1_000_000, 8


def apply_change(feed: ClusterFeed, job: str, action: str, form: Form) -> tuple[str, ...]:
    """Make a change, which `CHANGES` names, and return sentences about it."""
    sentence = feed.ask(lambda cluster: CHANGES[action](cluster, job, form))
    feed.note_change(job)
    return (sentence,)


def _scale(cluster: Cluster, job: str, form: Form) -> str:
    low, high = read_count(form, "min"), read_count(form, "max")
    cluster.jobs.scale(job, min_replicas=low, max_replicas=high)
    return f"{job} may now have {low} to {high} workers." if low != high else f"{job} now has {low} workers."


def _pause(cluster: Cluster, job: str, _: Form) -> str:
    cluster.jobs.pause(job)
    return f"{job} saves a checkpoint, and gives its devices back until it is resumed."


def _resume(cluster: Cluster, job: str, _: Form) -> str:
    cluster.jobs.resume(job)
    return f"{job} continues from its checkpoint as soon as its devices are free."


def _cancel(cluster: Cluster, job: str, _: Form) -> str:
    cluster.jobs.cancel(job)
    return f"{job} ends at its next commit. Its files stay."


def _set_priority(cluster: Cluster, job: str, form: Form) -> str:
    name = form.get("priority", "")
    cluster.jobs.set_priority(job, name)
    return f"{job} now has {f'priority {name}' if name else 'the default priority'}."


CHANGES: Mapping[str, Callable[[Cluster, str, Form], str]] = {
    "scale": _scale,
    "pause": _pause,
    "resume": _resume,
    "cancel": _cancel,
    "priority": _set_priority,
}


def read_count(form: Form, field: str) -> int:
    """Return a number of workers."""
    count = read_number(form.get(field, "").strip(), LONGEST)
    if count is None or not 0 < count <= LARGEST:
        raise BadField(field, "this is not a number of workers", means="nothing was changed", do="write 4")
    return count
