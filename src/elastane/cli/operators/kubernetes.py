"""``elastane kubernetes``: install a controller in a cluster of Kubernetes."""

import asyncio
import re
from typing import Annotated

from elastane.cli.command import AsJson, make_group, open_console, print_json
from elastane.cli.options import argument
from elastane.cluster.engines.kubernetes.installation.objects import (
    HOME,
    NAME,
    PORT,
    USER,
    Installation,
    list_manifests,
)
from elastane.cluster.nouns.kubernetes_options import DNS_LABEL
from elastane.common.documents import format_yaml
from elastane.common.errors import BadInput

Image = Annotated[str, argument("IMAGE", "Image of the controller; the Dockerfile builds one.")]
Namespace = Annotated[str, argument("[NAMESPACE]", "Namespace of the controller and its jobs.")]


def print_manifests(image: Image, namespace: Namespace = NAME, as_json: AsJson = False) -> None:
    """Print all objects of an installation, for kubectl apply -f -.

    These are the definition of ElasticJob, a namespace, a controller with its
    rights, a service, network policies, and claims for its volumes.
    """
    found = list_manifests(_check_installation(image, namespace))
    if as_json:
        print_json({"apiVersion": "v1", "kind": "List", "items": found})
        return
    print("---\n".join(map(format_yaml, found)), end="")


def install_controller(image: Image, namespace: Namespace = NAME, as_json: AsJson = False) -> None:
    """Install a controller in the cluster of the current context of kubectl.

    Applies the objects of elastane kubernetes manifests, makes a certificate
    unless there is one, and waits until the controller is available. Repeat it
    after an upgrade or a failure: it changes nothing that is right.
    """
    from elastane.cluster.engines.kubernetes.installation.install import (
        AppliedObject,
        install,
        wait_until_available,
    )
    from elastane.cluster.engines.kubernetes.kubeconfig import find_access
    from elastane.cluster.engines.kubernetes.options import KubernetesOptions

    installation = _check_installation(image, namespace)
    access = find_access(KubernetesOptions())
    console = open_console(as_json=as_json)
    found: list[AppliedObject] = []

    async def run() -> None:
        async for applied in install(access, installation):
            found.append(applied)
            console.print(f"{applied.outcome:<11}{applied.object}", markup=False)
        console.print("waiting until the controller is available", markup=False)
        await wait_until_available(access, namespace)

    console.print(f"installing in namespace {namespace} of {access.server}", markup=False, soft_wrap=True)
    asyncio.run(run())
    if as_json:
        print_json({"server": access.server, "namespace": namespace, "objects": found})
        return
    console.print(format_next_steps(installation), markup=False, soft_wrap=True)


def format_next_steps(installation: Installation) -> str:
    """Return what to type after an installation."""
    run = f"kubectl -n {installation.namespace} exec deploy/{NAME} -- elastane"
    return f"""\
the controller is available. Declare the cluster as its engine, and its devices as a pool:
  {run} engine set here --kind kubernetes --image {installation.image} \\
    --option volume={NAME}-home:{HOME} --option user={USER}:{USER} \\
    --option controller=https://{NAME}.{installation.namespace}:{PORT}
  {run} pool set gpus --device gpu --engine here --option resource=nvidia.com/gpu
  {run} pool remove local
  {run} doctor here"""


def _check_installation(image: str, namespace: str) -> Installation:
    if not re.fullmatch(DNS_LABEL, namespace):
        raise BadInput(
            f"{namespace!r} is not a name of a namespace",
            do="write lower-case letters, digits and '-', such as training",
        )
    return Installation(image=image, namespace=namespace)


kubernetes = make_group(
    "kubernetes",
    """
Install a controller in a cluster of Kubernetes.

  $ elastane kubernetes install team/train:1 training
""",
    {"install": install_controller, "manifests": print_manifests},
)
