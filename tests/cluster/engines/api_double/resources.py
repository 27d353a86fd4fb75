"""The resources of the double, by the plural of their kinds."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Resource(NamedTuple):
    """A kind of objects.

    Args:
        subs: parts of an object with addresses of their own, with the group, version and kind of each.
    """

    kind: str
    group: str = ""
    version: str = "v1"
    is_namespaced: bool = True
    short_names: tuple[str, ...] = ()
    subs: Mapping[str, tuple[str, str, str]] = MappingProxyType({})

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


RBAC, EXTENSIONS, KUEUE = "rbac.authorization.k8s.io", "apiextensions.k8s.io", "kueue.x-k8s.io"
RESOURCES = {
    "pods": Resource("Pod", subs={"eviction": ("policy", "v1", "Eviction"), "log": ("", "v1", "Pod")}),
    "secrets": Resource("Secret"),
    "events": Resource("Event"),
    "services": Resource("Service"),
    "serviceaccounts": Resource("ServiceAccount"),
    "persistentvolumeclaims": Resource("PersistentVolumeClaim"),
    "nodes": Resource("Node", is_namespaced=False),
    "namespaces": Resource("Namespace", is_namespaced=False),
    "deployments": Resource("Deployment", "apps"),
    "networkpolicies": Resource("NetworkPolicy", "networking.k8s.io"),
    "roles": Resource("Role", RBAC),
    "rolebindings": Resource("RoleBinding", RBAC),
    "clusterroles": Resource("ClusterRole", RBAC, is_namespaced=False),
    "clusterrolebindings": Resource("ClusterRoleBinding", RBAC, is_namespaced=False),
    "customresourcedefinitions": Resource("CustomResourceDefinition", EXTENSIONS, is_namespaced=False),
    "workloads": Resource("Workload", KUEUE, "v1beta1"),
    "localqueues": Resource("LocalQueue", KUEUE, "v1beta1"),
    "workloadpriorityclasses": Resource("WorkloadPriorityClass", KUEUE, "v1beta1", is_namespaced=False),
    "elasticjobs": Resource(
        "ElasticJob",
        "elastane.dev",
        "v1alpha1",
        short_names=("ej",),
        subs={"status": ("", "", "ElasticJob"), "scale": ("autoscaling", "v1", "Scale")},
    ),
}
"""`elasticjobs` are served once their definition has been created."""
KINDS = {plural: resource.kind for plural, resource in RESOURCES.items()}
IN_CLUSTER = tuple(plural for plural, resource in RESOURCES.items() if not resource.is_namespaced)
CUSTOM = {"elasticjobs": "elasticjobs.elastane.dev"}
"""The names of the definitions of resources that are not built in."""
VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
VERBS_OF_SUBS = {"log": ["get"], "eviction": ["create"]}


def describe_groups(groups: list[str]) -> dict:
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [describe_group(group) for group in groups]}


def describe_group(group: str) -> dict:
    version = next(one.version for one in RESOURCES.values() if one.group == group)
    described = {"groupVersion": f"{group}/{version}", "version": version}
    return {
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": group,
        "versions": [described],
        "preferredVersion": described,
    }


def describe_resources(api_version: str) -> dict:
    """Return the resources of a group in a version, as clients look them up."""
    found = []
    for plural, one in RESOURCES.items():
        if one.api_version != api_version:
            continue
        common = {"namespaced": one.is_namespaced}
        names = {"name": plural, "singularName": one.kind.lower(), "shortNames": one.short_names}
        found.append(common | names | {"kind": one.kind, "verbs": VERBS})
        for name, (group, version, kind) in one.subs.items():
            sub = {"name": f"{plural}/{name}", "kind": kind, "singularName": ""}
            sub["verbs"] = VERBS_OF_SUBS.get(name, ["get", "patch", "update"])
            found.append(common | sub | ({"group": group, "version": version} if version else {}))
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": found}


def describe_openapi(api_version: str) -> dict:
    """Return as much of a description as `kubectl` needs to leave the checks of fields to the server."""
    paths = {}
    for plural, one in RESOURCES.items():
        if one.api_version == api_version:
            inside = "/namespaces/{namespace}" if one.is_namespaced else ""
            root = f"/apis/{api_version}" if one.group else "/api/v1"
            paths[f"{root}{inside}/{plural}/{{name}}"] = {
                "patch": {
                    "parameters": [
                        {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}},
                        {"name": "dryRun", "in": "query", "schema": {"type": "string"}},
                    ],
                    "responses": {},
                    "x-kubernetes-action": "patch",
                    "x-kubernetes-group-version-kind": {
                        "group": one.group,
                        "version": one.version,
                        "kind": one.kind,
                    },
                }
            }
    return {"openapi": "3.0.0", "info": {"title": "double", "version": "1"}, "paths": paths}
