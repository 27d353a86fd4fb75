"""The pod of an agent with the template of its job: what people wrote, and what the agent needs. Pure."""

from collections.abc import Mapping
from typing import Any

from elastane.common.untrusted_data import Decoder, Malformed

TEMPLATE, OWNER = "template", "owner"
"""Options of a job in this engine: a pod template, and the resource that the pod belongs to, as JSON."""
LARGEST_TEMPLATE_BYTES = 128 << 10
JOB_LABEL = "elastane.dev/elastic-job"
"""The name of the resource that a pod belongs to."""
OWN_LABELS = "elastane.dev/"
"""People cannot set labels and annotations with this prefix: agents are found by them."""
OWN_GROUPS = tuple(f"kueue.x-k8s.io/{name}" for name in ("pod-group", "retriable-in-group", "role-hash"))
"""Nor those of Kueue's groups, with these prefixes: the controller decides which pods begin together."""
MERGED = ("nodeSelector",)
JOINED = ("tolerations", "volumes", "imagePullSecrets")
OURS = ("restartPolicy", "terminationGracePeriodSeconds", "activeDeadlineSeconds")
"""Fields of a pod that agents depend on."""
OURS_OF_CONTAINER = ("name", "command", "args", "workingDir")
"""Fields of the first container that are the agent's, which starts the program of the template itself."""

_decode: Decoder[dict[str, Any]] = Decoder(dict[str, Any], at_most_bytes=2 * LARGEST_TEMPLATE_BYTES)


def apply_template(pod: dict[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    """Return a pod with all that the template of its job adds; the API server judges the result.

    Args:
        pod: of an agent without a template.
        options: of the job, see `elastane.cluster.nouns.agents.AgentAsk`.

    Raises:
        Malformed: the template is not one, because others have written the store.
    """
    if TEMPLATE not in options:
        return pod
    template = _decode(options[TEMPLATE])
    metadata, spec = _get_object(template, "metadata"), _get_object(template, "spec")
    containers = spec.get("containers")
    if not isinstance(containers, list) or not containers or not isinstance(containers[0], dict):
        raise Malformed("its template has no containers")
    own: dict[str, Any] = pod["spec"]
    merged = {name: value for name, value in spec.items() if name not in OURS}
    merged |= {name: value for name, value in own.items() if name in OURS or name not in merged}
    for name in MERGED:
        if name in own or name in spec:
            merged[name] = {**own.get(name, {}), **_get_object(spec, name)}
    for name in JOINED:
        if name in own or name in spec:
            merged[name] = _join_lists(own, spec, name)
    merged["containers"] = [_merge_container(own["containers"][0], containers[0]), *containers[1:]]
    _give_way(merged)
    return pod | {"metadata": _merge_metadata(pod["metadata"], metadata, options), "spec": merged}


def read_template_labels(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the labels of the template of a job; none if it has no template, or one that cannot be used."""
    try:
        return _get_object(_get_object(_decode(options.get(TEMPLATE, "{}")), "metadata"), "labels")
    except Malformed:
        return {}


def _merge_container(own: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    merged = {name: value for name, value in theirs.items() if name not in OURS_OF_CONTAINER}
    merged |= {name: own[name] for name in OURS_OF_CONTAINER if name in own}
    merged |= {name: value for name, value in own.items() if name not in merged}
    merged["volumeMounts"] = _join_lists(own, theirs, "volumeMounts")
    if "env" in own:
        # Of two values of one name, the last one counts.
        merged["env"] = _join_lists(own, theirs, "env")
    merged["resources"] = _merge_resources(own["resources"], _get_object(theirs, "resources"))
    return merged


def _merge_resources(own: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    limits = _get_object(theirs, "limits")
    # As an API server has it: a limit without a request is one.
    asked = {"requests": {**limits, **_get_object(theirs, "requests")}, "limits": limits}
    merged = {}
    for part, named in asked.items():
        kept = {name: value for name, value in own.get(part, {}).items() if name not in asked["requests"]}
        if kept or named:
            merged[part] = {**kept, **named}
    return merged


def _give_way(spec: dict[str, Any]) -> None:
    """Take away our memory at a path where the template mounts a volume of its own."""
    mounts = spec["containers"][0]["volumeMounts"]
    paths = [mount.get("mountPath") for mount in mounts if isinstance(mount, dict)]
    taken = [mount for mount in mounts if mount.get("name") == "shm" and paths.count(mount["mountPath"]) > 1]
    if taken:
        spec["containers"][0]["volumeMounts"] = [mount for mount in mounts if mount not in taken]
        spec["volumes"] = [volume for volume in spec["volumes"] if volume.get("name") != "shm"]


def _merge_metadata(
    own: dict[str, Any], theirs: Mapping[str, Any], options: Mapping[str, str]
) -> dict[str, Any]:
    merged = dict(own)
    for part in ("labels", "annotations"):
        allowed = {
            name: value
            for name, value in _get_object(theirs, part).items()
            if not name.startswith((OWN_LABELS, *OWN_GROUPS)) and name not in own.get(part, {})
        }
        merged[part] = {**allowed, **own.get(part, {})}
    if OWNER in options:
        owner = _decode(options[OWNER])
        merged["labels"] |= {JOB_LABEL: owner["name"]}
        merged["ownerReferences"] = [
            {"apiVersion": "elastane.dev/v1alpha1", "kind": "ElasticJob", "controller": True} | owner
        ]
    return merged


def _get_object(holder: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = holder.get(name) or {}
    if not isinstance(found, dict):
        raise Malformed(f"{name} of its template has no fields")
    return found


def _join_lists(own: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> list[Any]:
    found = theirs.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise Malformed(f"{name} of its template is not a list")
    return [*own.get(name, ()), *found]
