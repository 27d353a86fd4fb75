"""The definition of `ElasticJob`, which an API server needs before it takes resources of this kind. Pure.

Its schema refuses wrong sizes when they are written, so that people see the error at once. The controller
checks all of it again.
"""

import types
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from elastane.cluster.engines.kubernetes.elastic_jobs.resource import GROUP, KIND, PLURAL, VERSION
from elastane.cluster.engines.kubernetes.kueue import QUEUE_LABEL
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, JobTraining, RunPolicy
from elastane.common.field_checks import MOST_WORKERS
from elastane.run.nouns.process_count import MOST_PROCESSES, is_process_count

MOST_ITEMS, MOST_CHARACTERS = 256, 4096
"""Limits of lists and texts: an API server refuses rules that may take it too long."""
_PLAIN: dict[object, dict[str, Any]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    str: {"type": "string", "maxLength": MOST_CHARACTERS},
}


def build_schema(kind: Any) -> dict[str, Any]:
    """Return the structural schema of a type of a spec; the only unions there are of numbers and words."""
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _build_object(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin in (Union, types.UnionType):
        some = [argument for argument in arguments if argument is not type(None)]
        return build_schema(some[0]) if len(some) == 1 else {"x-kubernetes-int-or-string": True}
    if origin in (tuple, list):
        return {"type": "array", "maxItems": MOST_ITEMS, "items": build_schema(arguments[0])}
    raise TypeError(f"{kind} has no schema")


def _build_object(kind: type[msgspec.Struct]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    properties = {
        field.encode_name: build_schema(hints[field.name]) for field in msgspec.structs.fields(kind)
    }
    return {"type": "object", "properties": properties}


LONGEST_NAME = 54
"""With nine characters more, it is still a label: the name of the job may have a part of the UID."""
ANY_OBJECT = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
PROCESS_COUNTS = [count for count in range(1, MOST_PROCESSES + 1) if is_process_count(count)]
SHORT_TEXT = {"type": "string", "maxLength": 100}
POLICY_RULES = (
    ("self.minReplicas <= self.maxReplicas", "minReplicas must not be larger than maxReplicas"),
    (
        "!(has(self.replicaIncrementStep) && has(self.replicaDiscreteValues))",
        "replicaIncrementStep and replicaDiscreteValues cannot be combined",
    ),
)
_WITHIN = "self.replicas >= self.elasticPolicy.minReplicas && self.replicas <= self.elasticPolicy.maxReplicas"
_FREE = "!has(self.replicas) || self.replicas == 0"
_LISTED = "has(self.elasticPolicy.replicaDiscreteValues)"
_SAME_TRAINING = (
    "has(self.training) ? has(oldSelf.training) && self.training == oldSelf.training : !has(oldSelf.training)"
)
SPEC_RULES = (
    (f"{_FREE} || {_LISTED} || ({_WITHIN})", "replicas must be 0, or from minReplicas to maxReplicas"),
    (
        f"{_FREE} || !{_LISTED} || self.replicas in self.elasticPolicy.replicaDiscreteValues",
        "replicas must be 0, or one of replicaDiscreteValues",
    ),
    (
        "has(self.contract) || !has(self.nprocPerNode) || self.nprocPerNode == 1",
        "nprocPerNode requires contract: torchrun",
    ),
    (_SAME_TRAINING, "training cannot be changed: make another ElasticJob"),
)
NAME_RULE = (f"size(self.metadata.name) <= {LONGEST_NAME}", f"the name has more than {LONGEST_NAME} letters")
COLUMNS = (
    ("Size", "integer", ".status.replicas"),
    ("Min", "integer", ".spec.elasticPolicy.minReplicas"),
    ("Max", "integer", ".spec.elasticPolicy.maxReplicas"),
    ("Step", "integer", ".status.step"),
    ("Queue", "string", f".metadata.labels.{QUEUE_LABEL.replace('.', chr(92) + '.')}"),
    ("Reason", "string", ".status.reason"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def build_definition() -> dict[str, Any]:
    columns = [{"name": name, "type": kind, "jsonPath": path} for name, kind, path in COLUMNS]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _build_root()},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": columns,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["ej"],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def _build_root() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "A training job that runs with more or fewer workers, and trains the same bytes.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _build_spec(),
            "status": _build_status(),
        },
        "x-kubernetes-validations": _list_rules(NAME_RULE),
    }


def _build_spec() -> dict[str, Any]:
    hints = get_type_hints(JobSpec)
    policy = build_schema(ElasticPolicy)
    for name in ("minReplicas", "maxReplicas", "replicaIncrementStep"):
        policy["properties"][name] |= {"minimum": 1, "maximum": MOST_WORKERS}
    for name in ("minReplicas", "maxReplicas"):
        policy["properties"][name]["default"] = 1
    values = policy["properties"]["replicaDiscreteValues"]
    values |= {"minItems": 1, "items": values["items"] | {"minimum": 1, "maximum": MOST_WORKERS}}
    return {
        "type": "object",
        "required": ["template"],
        "properties": {
            "elasticPolicy": policy
            | {
                "description": "The numbers of workers that the job may have, and how long changes may take.",
                "default": {},
                "x-kubernetes-validations": _list_rules(*POLICY_RULES),
            },
            "replicas": {
                "type": "integer",
                "format": "int32",
                "minimum": 0,
                "maximum": MOST_WORKERS,
                "description": "The most workers for now; 0 suspends the job. Absent: up to maxReplicas.",
            },
            "runPolicy": build_schema(RunPolicy)
            | {"description": "When the job is suspended, stopped for good, or forgotten."},
            "contract": {
                "type": "string",
                "enum": ["torchrun"],
                "description": "torchrun: the script knows nothing of Elastane. Absent: it calls "
                "elastane.join().",
            },
            "nprocPerNode": build_schema(hints["nproc_per_node"])
            | {"minimum": 1, "description": "Processes of each worker of an unmodified script."},
            "processes": build_schema(hints["processes"])
            | {
                "enum": PROCESS_COUNTS,
                "description": "Processes of each worker, which divide the model. A power of two.",
            },
            "priorityClassName": SHORT_TEXT
            | {"description": "A priority class of Elastane; absent: the default of its cluster."},
            "training": build_schema(JobTraining)
            | {"description": "How the job trains. The trained bytes depend on it."},
            "template": _build_template(),
        },
        "x-kubernetes-validations": _list_rules(*SPEC_RULES),
    }


def _build_template() -> dict[str, Any]:
    words = {"type": "array", "maxItems": 1024, "items": {"type": "string"}}
    container = ANY_OBJECT | {
        "required": ["command"],
        "properties": {
            "name": {"type": "string"},
            "image": {"type": "string"},
            "command": words
            | {"minItems": 1, "description": "The program of a worker: python and a script, or -m."},
            "args": words | {"description": "Further arguments of the program."},
            "workingDir": {"type": "string"},
        },
    }
    containers = {"type": "array", "minItems": 1, "maxItems": 16, "items": container}
    return {
        "type": "object",
        "description": "The pod of a worker. Its first container is the worker.",
        "required": ["spec"],
        "properties": {
            "metadata": ANY_OBJECT,
            "spec": ANY_OBJECT | {"required": ["containers"], "properties": {"containers": containers}},
        },
    }


def _build_status() -> dict[str, Any]:
    count = {"type": "integer", "format": "int64"}
    condition = {
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            name: {"type": "string"} for name in ("type", "status", "reason", "message", "lastTransitionTime")
        },
    }
    return {
        "type": "object",
        "properties": {
            "observedGeneration": count,
            "job": {"type": "string", "description": "The name of the job in Elastane."},
            "replicas": count | {"description": "The workers that train."},
            "selector": {"type": "string"},
            "step": count,
            "progressPercentage": count,
            "estimatedRemainingSeconds": count,
            "reason": {"type": "string", "description": "Why the job has its size."},
            "elasticScalingStatus": {"type": "object", "properties": {"targetReplicas": count}},
            "conditions": {
                "type": "array",
                "items": condition,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            },
        },
    }


def _list_rules(*rules: tuple[str, str]) -> list[dict[str, str]]:
    return [{"rule": rule, "message": message} for rule, message in rules]
