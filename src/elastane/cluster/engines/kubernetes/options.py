"""The options of the engine and of its pools, decoded."""

import re
from collections.abc import Mapping

import msgspec

from elastane.cluster.engines.decoded_options import Readers, decode_engine, decode_pool, parse_labels
from elastane.cluster.nouns.option_forms import HOME, OWN_HOME

ANSWER_S = 5.0
"""How long the API server may take for one answer, unless the options say otherwise."""
CPU, MEMORY = "cpu", "memory"
_TOLERATION = re.compile(r"([^=:]+)(?:(=)([^:]*))?(?::(.+))?")


class Toleration(msgspec.Struct, frozen=True, omit_defaults=True):
    """A taint of nodes that pods tolerate, with the names of the API.

    Args:
        operator: ``Exists``, with any value of the taint, or ``Equal``.
        effect: empty: all effects.
    """

    key: str
    operator: str = ""
    value: str = ""
    effect: str = ""


class KubernetesPool(msgspec.Struct, frozen=True, kw_only=True):
    """What agents of a pool ask of Kubernetes; `KUBERNETES` describes the options. Empty: left to Kubernetes.

    Args:
        cpus_per_device: unless the agent asks for a number of them; 0: none are requested.
        memory_bytes_per_device: unless the agent asks for some; 0: without a limit.
        workload_priority_class: of the pods with which a job begins, and of others without their own.
    """

    resource: str = CPU
    image: str = ""
    cpus_per_device: int = 0
    memory_bytes_per_device: int = 0
    node_selector: Mapping[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    priority_class: str = ""
    runtime_class: str = ""
    queue: str = ""
    workload_priority_class: str = ""
    growth_priority_class: str = ""


class KubernetesOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the engine, which `KUBERNETES` describes. Empty: as the kubeconfig or Kubernetes say.

    Args:
        volumes: names of persistent volume claims, and the paths at which the agents see them.
        user: user and group of the agents; None: those of the image.
        shares_home: the agents see the home of the controller, in one of the volumes.
        elastic_jobs: the team that owns the jobs of `ElasticJob` resources; empty: they are ignored.
    """

    context: str = ""
    kubeconfig: str = ""
    namespace: str = ""
    image: str = ""
    image_pull_secret: str = ""
    service_account: str = ""
    volumes: tuple[tuple[str, str], ...] = ()
    user: tuple[int, int | None] | None = None
    command: tuple[str, ...] = ("elastane",)
    shares_home: bool = True
    elastic_jobs: str = ""
    answer_s: float = ANSWER_S


def decode_kubernetes_pool(options: Mapping[str, str]) -> KubernetesPool:
    readers: Readers = {
        "nodeSelector": ("node_selector", parse_labels),
        "toleration": ("tolerations", lambda text: tuple(map(_parse_toleration, text.split(",")))),
        "priorityClassName": ("priority_class", str),
        "runtimeClassName": ("runtime_class", str),
        "workloadPriorityClassName": ("workload_priority_class", str),
        "growthPriorityClassName": ("growth_priority_class", str),
    }
    each = {"cpusPerDevice": "1"} if options.get("resource", CPU) == CPU else {}
    return decode_pool("kubernetes", KubernetesPool, each | dict(options), readers)


def decode_kubernetes_options(options: Mapping[str, str]) -> KubernetesOptions:
    readers: Readers = {
        "volume": ("volumes", _parse_volumes),
        "user": ("user", _parse_user),
        HOME.name: ("shares_home", lambda text: text != OWN_HOME),
    }
    return decode_engine("kubernetes", KubernetesOptions, options, readers)


def _parse_volumes(text: str) -> tuple[tuple[str, str], ...]:
    return tuple((claim, path) for claim, _, path in (volume.partition(":") for volume in text.split(",")))


def _parse_user(text: str) -> tuple[int, int | None]:
    user, _, group = text.partition(":")
    return int(user), int(group) if group else None


def _parse_toleration(text: str) -> Toleration:
    match = _TOLERATION.fullmatch(text)
    assert match is not None, "the form was checked"
    operator = "Equal" if match[2] else "Exists"
    return Toleration(key=match[1], operator=operator, value=match[3] or "", effect=match[4] or "")
