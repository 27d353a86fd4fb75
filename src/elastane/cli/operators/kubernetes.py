"""``elastane kubernetes``: install a controller in a cluster of Kubernetes."""

import re
from typing import Annotated

import typer

from elastane.cli.command import AsJson, print_json, wrap_command
from elastane.cli.operators.declarations import make_group
from elastane.cluster.engines.kubernetes.installation.objects import NAME, Installation, list_manifests
from elastane.cluster.nouns.kubernetes_options import DNS_LABEL
from elastane.common.documents import format_yaml
from elastane.common.errors import BadInput


def print_manifests(
    image: Annotated[
        str, typer.Argument(metavar="IMAGE", help="Image of the controller; the Dockerfile builds one.")
    ],
    namespace: Annotated[
        str, typer.Argument(metavar="[NAMESPACE]", help="Namespace of the controller and its jobs.")
    ] = NAME,
    as_json: AsJson = False,
) -> None:
    """Print all objects of an installation, for kubectl apply -f -.

    These are the definition of ElasticJob, a namespace, a controller with its
    rights, a service, network policies, and claims for its volumes.
    """
    if not re.fullmatch(DNS_LABEL, namespace):
        raise BadInput(
            f"{namespace!r} is not a name of a namespace",
            do="write lower-case letters, digits and '-', such as training",
        )
    found = list_manifests(Installation(image=image, namespace=namespace))
    if as_json:
        print_json({"apiVersion": "v1", "kind": "List", "items": found})
        return
    print("---\n".join(map(format_yaml, found)), end="")


kubernetes = make_group(
    "kubernetes",
    """
Install a controller in a cluster of Kubernetes.

  $ elastane kubernetes manifests team/train:1 training | kubectl apply -f -
""",
)
kubernetes.command("manifests")(wrap_command(print_manifests))
