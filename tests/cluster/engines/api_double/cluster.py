"""A small cluster of Kubernetes on loopback: a double of its API server, and nodes with real processes."""

import base64
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from tests.cluster.engines.api_double.certificate import read_public_part, write_certificate
from tests.cluster.engines.api_double.nodes import Nodes, remove_folder
from tests.cluster.engines.api_double.objects import Document, Objects
from tests.cluster.engines.api_double.server import ApiDouble

NAMESPACE = "training"
NODES = ("n1", "n2", "n3")
DEVICE = "nvidia.com/gpu"
ALLOCATABLE = {"cpu": "4", "memory": "16Gi", "pods": "110", DEVICE: "2"}


class SmallCluster:
    """Nodes with two devices each, and the namespace `NAMESPACE`."""

    def __init__(
        self, folder: Path, environment: Mapping[str, str], names: Sequence[str], kind: type[Nodes]
    ) -> None:
        self.objects = Objects()
        self.nodes = kind(self.objects, folder, dict(environment))
        certificate = write_certificate(folder)
        self.api = ApiDouble(self.objects, self.nodes, certificate)
        self.kubeconfig = folder / "kubeconfig"
        self.objects.create("namespaces", "", {"metadata": {"name": NAMESPACE}})
        for name in names:
            self.objects.create("nodes", "", build_node(name))
        self.kubeconfig.write_text(build_kubeconfig(self.api, read_public_part(certificate)))
        self.kubeconfig.chmod(0o600)
        self.nodes.start()

    def list_pods(self) -> list[Document]:
        return self.objects.list_all("pods", NAMESPACE)

    def list_living(self) -> list[str]:
        """Return the names of the pods that run, the oldest first."""
        running = [pod for pod in self.list_pods() if pod["status"].get("phase") == "Running"]
        return [pod["metadata"]["name"] for pod in running if not pod["metadata"].get("deletionTimestamp")]

    def delete(self, name: str, **options: int) -> None:
        self.objects.delete("pods", NAMESPACE, name, dict(options))

    def read_logs(self) -> str:
        parts = []
        for pod in self.list_pods():
            log = self.nodes.log(pod)
            text = log.read_text(errors="replace") if log.exists() else ""
            parts.append(f"{pod['metadata']['name']} {pod['status']}\n{text[-3000:]}")
        return "\n".join(parts)

    def close(self) -> None:
        self.api.stop()
        self.nodes.close()


def build_node(name: str) -> Document:
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {
            "allocatable": ALLOCATABLE,
            "capacity": ALLOCATABLE,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def build_kubeconfig(api: ApiDouble, authority: str) -> str:
    data = base64.b64encode(authority.encode()).decode()
    return f"""\
apiVersion: v1
kind: Config
current-context: east
clusters:
- name: double
  cluster: {{server: "{api.url}", certificate-authority-data: "{data}"}}
users:
- name: ada
  user: {{token: "{api.token}"}}
contexts:
- name: east
  context: {{cluster: double, user: ada, namespace: {NAMESPACE}}}
"""


@contextmanager
def run_small_cluster(
    environment: Mapping[str, str] = MappingProxyType({"PATH": os.environ["PATH"]}),
    names: Sequence[str] = NODES,
    kind: type[Nodes] = Nodes,
) -> Iterator[SmallCluster]:
    """Start a cluster, and end it with all its processes when the context does."""
    folder = Path(tempfile.mkdtemp(prefix="elastane-kubernetes-"))
    cluster = SmallCluster(folder, environment, names, kind)
    try:
        yield cluster
    finally:
        cluster.close()
        remove_folder(folder)
