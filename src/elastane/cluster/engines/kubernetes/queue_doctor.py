"""Finds out whether the queue of a pool can work: whether Kueue sees its pods, its queue, its classes."""

from collections.abc import Mapping

import msgspec

from elastane.cluster.engines.kubernetes.api_server import ApiServer
from elastane.cluster.engines.kubernetes.options import KubernetesPool
from elastane.cluster.engines.kubernetes.pods import decode_agent_pod
from elastane.cluster.engines.kubernetes.refusals import NOT_FOUND, ApiRefusal
from elastane.cluster.engines.kubernetes.workload_list import find_kueue_api
from elastane.cluster.nouns.agents import Away, EngineFinding
from elastane.common.safe_text import fold_text
from elastane.common.untrusted_data import Decoder, Malformed

INTEGRATE = (
    "add pod to integrations.frameworks in the configuration of Kueue, and let its "
    "managedJobsNamespaceSelector select the namespace"
)
LONGEST_MESSAGE = 400


class _Condition(msgspec.Struct, frozen=True):
    type: str
    status: str = ""
    message: str | None = None


class _Status(msgspec.Struct, frozen=True):
    conditions: list[_Condition] | None = None


class _Queue(msgspec.Struct, frozen=True):
    status: _Status = _Status()


_decode_queue: Decoder[_Queue] = Decoder(_Queue)


async def examine_queue(
    server: ApiServer, name: str, pool: KubernetesPool, namespace: str, trial: bytes
) -> list[EngineFinding]:
    """Look at all that the queue of a pool needs; Kueue's webhook has seen the trial pod."""
    pod = decode_agent_pod(trial, "trial")
    if pod is None or not pod.is_queued:
        what = f"pool {name}: Kueue leaves pods in namespace {namespace} alone, so they wait for no quota"
        return [EngineFinding(False, what, INTEGRATE)]
    path = await find_kueue_api(server)
    if path is None:
        return [EngineFinding(True, f"pool {name}: Kueue holds its pods, but its queues cannot be seen")]
    queue = await server.get(f"{path}/namespaces/{namespace}/localqueues/{pool.queue}")
    named = (pool.workload_priority_class, pool.growth_priority_class)
    classes = {one: await server.get(f"{path}/workloadpriorityclasses/{one}") for one in named if one}
    return [judge_local_queue(name, pool, namespace, queue), *judge_classes(name, pool, classes)]


def judge_local_queue(
    name: str, pool: KubernetesPool, namespace: str, answer: bytes | ApiRefusal | Away
) -> EngineFinding:
    """Say whether the local queue of a pool is there, and takes pods."""
    if isinstance(answer, Away):
        return EngineFinding(
            False, f"pool {name}: queue {pool.queue} of Kueue cannot be seen: {answer.why}", "try again"
        )
    if isinstance(answer, ApiRefusal):
        if answer.code == NOT_FOUND:
            what = f"pool {name}: Kueue has no queue {pool.queue} in namespace {namespace}"
            return EngineFinding(False, what, "create a LocalQueue of this name, or set the option queue")
        return EngineFinding(True, f"pool {name}: queue {pool.queue} of Kueue cannot be seen: {answer.words}")
    try:
        conditions = _decode_queue(answer).status.conditions or ()
    except Malformed as error:
        what = f"pool {name}: queue {pool.queue} of Kueue cannot be read: {error}"
        return EngineFinding(False, what, "look at it with kubectl describe localqueue")
    for condition in conditions:
        if (condition.type, condition.status) == ("Active", "False"):
            message = fold_text(condition.message or "no reason", LONGEST_MESSAGE)
            what = f"pool {name}: queue {pool.queue} of Kueue takes no pods: {message}"
            return EngineFinding(False, what, "look at it with kubectl describe localqueue")
    return EngineFinding(True, f"pool {name}: Kueue admits its pods in queue {pool.queue}")


def judge_classes(
    name: str, pool: KubernetesPool, answers: Mapping[str, bytes | ApiRefusal | Away]
) -> list[EngineFinding]:
    """Say which workload priority classes are missing: Kueue makes no workload of a pod that names one."""
    found = [
        EngineFinding(
            False,
            f"pool {name}: Kueue has no workload priority class {one}",
            "create it, or change workloadPriorityClassName or growthPriorityClassName",
        )
        for one, answer in answers.items()
        if isinstance(answer, ApiRefusal) and answer.code == NOT_FOUND
    ]
    if not pool.growth_priority_class:
        what = (
            f"pool {name}: Kueue does not tell growth from the fewest pods of a job: it has no "
            "growthPriorityClassName"
        )
        found.append(EngineFinding(True, what))
    return found
