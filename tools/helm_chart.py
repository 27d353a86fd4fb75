"""The files of the chart for Helm in charts/, made of the same objects as the manifests.

Values of the chart stand in the objects as expressions of Helm, so that both have one source. A test of the
installation compares the files, and writes them with --rewrite.
"""

import re
from importlib.metadata import version
from typing import Any

from elastane.cluster.engines.kubernetes.elastic_jobs.definition import build_definition
from elastane.cluster.engines.kubernetes.installation.objects import NAME, Installation, build_objects
from elastane.common.documents import format_yaml

VALUES: dict[str, Any] = {
    "image": "",
    "home": {"size": "100Gi", "storageClass": ""},
    "store": {"size": "10Gi", "storageClass": ""},
}
NOTES = {
    "image": "Image of the controller: the one of the Dockerfile, or one with your own packages.",
    "home": "Volume that all pods share. Its class must allow ReadWriteMany.",
    "store": "Volume with the database of the controller.",
}
_CLASS = re.compile(r"( *)storageClassName: '?\{\{ ([\w.]+) \}\}'?\n")


def build_helm_chart() -> dict[str, str]:
    """Return the files of the chart by their paths."""
    installation = Installation(
        image='{{ required "set image" .Values.image }}',
        namespace="{{ .Release.Namespace }}",
        home_size="{{ .Values.home.size }}",
        store_size="{{ .Values.store.size }}",
        home_class="{{ .Values.home.storageClass }}",
        store_class="{{ .Values.store.storageClass }}",
    )
    number = version(NAME)
    about = {
        "apiVersion": "v2",
        "name": NAME,
        "description": "Elastic training for PyTorch: a controller, and ElasticJob resources.",
        "type": "application",
        "version": number,
        "appVersion": number,
        "kubeVersion": ">=1.29.0-0",
    }
    templates = {
        f"templates/{name}.yaml": _write_optional_classes(format_yaml(one))
        for name, one in build_objects(installation).items()
    }
    return {
        "Chart.yaml": format_yaml(about),
        "values.yaml": "".join(
            f"# {NOTES[name]}\n{format_yaml({name: value})}" for name, value in VALUES.items()
        ),
        # Helm creates the files of this folder before the templates, and never deletes them.
        "crds/elasticjobs.yaml": format_yaml(build_definition()),
        **templates,
    }


def _write_optional_classes(text: str) -> str:
    """Leave out a storage class that is empty: that would not be the default one."""
    return _CLASS.sub(r"\1{{- with \2 }}\n\1storageClassName: {{ . }}\n\1{{- end }}\n", text)
