"""All objects of an installation: a controller, its rights, its storage, and the definition of jobs. Pure."""

from typing import Any

import msgspec

from elastane.cluster.engines.kubernetes.elastic_jobs.definition import build_definition
from elastane.cluster.engines.kubernetes.elastic_jobs.resource import GROUP, PLURAL
from elastane.cluster.engines.kubernetes.kueue import KUEUE
from elastane.cluster.engines.kubernetes.manifest import MANAGER, MANAGER_LABEL

NAME = "elastane"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/component": "controller"}
PORT, PORT_NAME = 7425, "https"
HOME, STORE, TLS, TEMPORARY = "/shared/elastane", "/var/lib/elastane", "/etc/elastane/tls", "/tmp"  # noqa: S108
USER = 1000
RBAC = "rbac.authorization.k8s.io"
RIGHTS = (
    ("", ("pods",), ("create", "get", "list", "watch", "delete")),
    ("", ("secrets", "events"), ("create",)),
    ("", ("namespaces", "persistentvolumeclaims"), ("get",)),
    (GROUP, (PLURAL,), ("get", "list", "watch", "patch", "delete")),
    (GROUP, (f"{PLURAL}/status",), ("patch",)),
    (KUEUE, ("workloads",), ("list", "watch")),
    (KUEUE, ("localqueues",), ("get",)),
)
"""What the controller may do in its namespace: API group, resources and verbs."""
RIGHTS_IN_CLUSTER = (
    ("", ("nodes", "pods"), ("list", "watch")),
    (KUEUE, ("workloadpriorityclasses",), ("get",)),
)
"""And in the whole cluster, to see which devices are free, and which classes its pods may name."""
RIGHTS_OF_PEOPLE = (
    (
        GROUP,
        (PLURAL, f"{PLURAL}/scale"),
        ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"),
    ),
)


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between installations: the image of the controller, its namespace, and the two volumes.

    Args:
        home_size: of the volume that all pods share.
        store_size: of the volume with the controller's database.
        home_class, store_class: storage classes; empty: the default of the cluster.
    """

    image: str
    namespace: str = NAME
    home_size: str = "100Gi"
    store_size: str = "10Gi"
    home_class: str = ""
    store_class: str = ""


def build_objects(installation: Installation) -> dict[str, dict[str, Any]]:
    """Return all objects but the definition of jobs and the namespace, by a word for each."""
    return {
        "service-account": _build("v1", "ServiceAccount", installation),
        "role": _build_role("Role", RIGHTS, installation),
        "role-binding": _build_binding("Role", installation),
        "cluster-role": _build_role("ClusterRole", RIGHTS_IN_CLUSTER, installation),
        "cluster-role-binding": _build_binding("ClusterRole", installation),
        "cluster-role-for-people": _build_role_for_people(),
        "home": _build_claim("home", "ReadWriteMany", installation),
        "store": _build_claim("store", "ReadWriteOnce", installation),
        "service": _build("v1", "Service", installation)
        | {
            "spec": {
                "selector": dict(LABELS),
                "ports": [{"name": PORT_NAME, "port": PORT, "targetPort": PORT_NAME}],
            }
        },
        "deployment": _build_deployment(installation),
        "network-policy": _build_policy(NAME, LABELS, [{"podSelector": {}}], installation, port=PORT_NAME),
        "network-policy-of-agents": _build_policy(
            f"{NAME}-agents",
            {MANAGER_LABEL: MANAGER},
            [
                {"podSelector": {"matchLabels": {MANAGER_LABEL: MANAGER}}},
                {"podSelector": {"matchLabels": dict(LABELS)}},
            ],
            installation,
        ),
    }


def build_certificate_secret(namespace: str, certificate: str, key: str) -> dict[str, Any]:
    """Return the Secret with the certificate of the controller.

    Args:
        certificate: as PEM.
        key: as PEM.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"{NAME}-tls", "namespace": namespace, "labels": dict(LABELS)},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": certificate, "tls.key": key},
    }


def list_manifests(installation: Installation) -> list[dict[str, Any]]:
    """Return all objects in the order in which they can be created."""
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": installation.namespace,
            # Pods of jobs need no more than this.
            "labels": {"pod-security.kubernetes.io/enforce": "baseline"},
        },
    }
    return [build_definition(), namespace, *build_objects(installation).values()]


def _build_metadata(name: str, installation: Installation | None) -> dict[str, Any]:
    place = {} if installation is None else {"namespace": installation.namespace}
    return {"name": name, **place, "labels": dict(LABELS)}


def _build(
    api_version: str, kind: str, installation: Installation | None, name: str = NAME
) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": _build_metadata(name, installation)}


def _list_rules(rights: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]) -> list[dict[str, Any]]:
    return [
        {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
        for group, resources, verbs in rights
    ]


def _build_role(
    kind: str, rights: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...], installation: Installation
) -> dict[str, Any]:
    is_local = kind == "Role"
    name = NAME if is_local else f"{NAME}-{installation.namespace}"
    role = _build(f"{RBAC}/v1", kind, installation if is_local else None, name)
    return role | {"rules": _list_rules(rights)}


def _build_binding(kind: str, installation: Installation) -> dict[str, Any]:
    is_local = kind == "Role"
    name = NAME if is_local else f"{NAME}-{installation.namespace}"
    account = {"kind": "ServiceAccount", "name": NAME, "namespace": installation.namespace}
    return _build(f"{RBAC}/v1", f"{kind}Binding", installation if is_local else None, name) | {
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [account],
    }


def _build_role_for_people() -> dict[str, Any]:
    role = _build(f"{RBAC}/v1", "ClusterRole", None, f"{NAME}-edit")
    # People with the right to edit a namespace may have jobs there.
    role["metadata"]["labels"] |= {f"{RBAC}/aggregate-to-edit": "true", f"{RBAC}/aggregate-to-admin": "true"}
    return role | {"rules": _list_rules(RIGHTS_OF_PEOPLE)}


def _build_claim(part: str, mode: str, installation: Installation) -> dict[str, Any]:
    sizes = {"home": installation.home_size, "store": installation.store_size}
    classes = {"home": installation.home_class, "store": installation.store_class}
    spec: dict[str, Any] = {"accessModes": [mode], "resources": {"requests": {"storage": sizes[part]}}}
    if classes[part]:
        spec["storageClassName"] = classes[part]
    return _build("v1", "PersistentVolumeClaim", installation, f"{NAME}-{part}") | {"spec": spec}


def _build_policy(
    name: str, labels: dict[str, str], peers: list[dict[str, Any]], installation: Installation, port: str = ""
) -> dict[str, Any]:
    rule: dict[str, Any] = {"from": peers} | ({"ports": [{"port": port}]} if port else {})
    return _build("networking.k8s.io/v1", "NetworkPolicy", installation, name) | {
        "spec": {"podSelector": {"matchLabels": dict(labels)}, "policyTypes": ["Ingress"], "ingress": [rule]}
    }


def _build_deployment(installation: Installation) -> dict[str, Any]:
    return _build("apps/v1", "Deployment", installation) | {
        "spec": {
            "replicas": 1,
            # Only one controller may have the store: the old one ends before the new one begins.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": dict(LABELS)},
            "template": {"metadata": {"labels": dict(LABELS)}, "spec": _build_pod_spec(installation)},
        }
    }


def _build_pod_spec(installation: Installation) -> dict[str, Any]:
    volumes: list[tuple[str, str, dict[str, Any]]] = [
        ("home", HOME, {"persistentVolumeClaim": {"claimName": f"{NAME}-home"}}),
        ("store", STORE, {"persistentVolumeClaim": {"claimName": f"{NAME}-store"}}),
        ("tls", TLS, {"secret": {"secretName": f"{NAME}-tls", "defaultMode": 0o440}}),
        ("tmp", TEMPORARY, {"emptyDir": {}}),
    ]
    probe = {"tcpSocket": {"port": PORT_NAME}, "periodSeconds": 5}
    return {
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "controller",
                "image": installation.image,
                "command": ["elastane"],
                "args": [
                    "up",
                    "--listen",
                    f"0.0.0.0:{PORT}",
                    "--store",
                    f"sqlite:///{STORE}/controller.db",
                    "--tls-cert",
                    f"{TLS}/tls.crt",
                    "--tls-key",
                    f"{TLS}/tls.key",
                ],
                "env": [
                    {"name": "ELASTANE_HOME", "value": HOME},
                    # The user of the container has no name.
                    {"name": "LOGNAME", "value": NAME},
                    {"name": "HOME", "value": TEMPORARY},
                ],
                "ports": [{"name": PORT_NAME, "containerPort": PORT}],
                "readinessProbe": dict(probe),
                "livenessProbe": probe | {"failureThreshold": 12},
                "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": name, "mountPath": path} | ({"readOnly": True} if name == "tls" else {})
                    for name, path, _ in volumes
                ],
            }
        ],
        "volumes": [{"name": name, **source} for name, _, source in volumes],
    }
