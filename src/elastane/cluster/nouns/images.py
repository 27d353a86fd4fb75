"""Container images of jobs: their names, and the engines that can run them. Pure.

An image has the name that Docker and Kubernetes use, or the path of a file or directory. Each engine gets the
name in its own spelling.
"""

import re

import msgspec

from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.engine_options import CONTAINER
from elastane.common.field_checks import make_field_error

LONGEST_IMAGE = 512
EXAMPLES = "team/train:1, registry.example.com/team/train@sha256:... or /shared/train.sif"

_REGISTRY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252}[A-Za-z0-9])?(?::[0-9]{1,5})?")
_PART = r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*"
_NAME = re.compile(
    rf"({_PART}(?:/{_PART})*)(?::([A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}}))?(?:@(sha256:[0-9a-f]{{64}}))?"
)
_PATH = re.compile(r"/[A-Za-z0-9_./+@=-]*[A-Za-z0-9_+@=-]")
SQUASHFS = (".sqsh", ".squashfs")
"""Endings of the files that Pyxis takes."""
FILES = (".sif", *SQUASHFS)


class ContainerImage(msgspec.Struct, frozen=True, kw_only=True):
    """A container image.

    Args:
        registry: a host with an optional port; empty: the default one of the engine.
        name: in the registry.
        tag: empty: the engine's default.
        digest: decides the content; the tag is then for people only. Empty: none.
        path: absolute path of a file or directory, instead of all others.
    """

    registry: str = ""
    name: str = ""
    tag: str = ""
    digest: str = ""
    path: str = ""

    @property
    def in_registry(self) -> str:
        """The name in the registry, with the digest or else the tag: several engines refuse to take both."""
        if self.digest:
            return f"{self.name}@{self.digest}"
        return f"{self.name}:{self.tag}" if self.tag else self.name

    @property
    def reference(self) -> str:
        """The name as Docker and Kubernetes write it; empty: the image is a path."""
        if not self.name:
            return ""
        tag, digest = f":{self.tag}" if self.tag else "", f"@{self.digest}" if self.digest else ""
        return f"{f'{self.registry}/' if self.registry else ''}{self.name}{tag}{digest}"


def parse_image(text: str) -> ContainerImage:
    """Return the image of a text: ``REGISTRY/NAME:TAG@DIGEST``, Pyxis' ``REGISTRY#NAME:TAG``, or a path."""
    if text.endswith(FILES) and not text.startswith("/"):
        raise make_field_error(
            "image",
            f"{text[:LONGEST_IMAGE]!r} is not an absolute path",
            "write the path that the file has on the machines of the cluster: /shared/train.sif",
        )
    if len(text) <= LONGEST_IMAGE:
        if _PATH.fullmatch(text) and ".." not in text.split("/"):
            return ContainerImage(path=text)
        registry, mark, rest = text.partition("#" if "#" in text else "/")
        if not mark or not _is_registry(registry):
            registry, rest = "", text
        if match := _NAME.fullmatch(rest):
            name, tag, digest = match.groups(default="")
            return ContainerImage(registry=registry, name=name, tag=tag, digest=digest)
    raise make_field_error(
        "image", f"{text[:LONGEST_IMAGE]!r} is not an image", f"write for example {EXAMPLES}"
    )


def _is_registry(text: str) -> bool:
    """Return whether a first part is a registry. As Docker has it, another one is a part of the name."""
    return bool(_REGISTRY.fullmatch(text) and (set(".:") & set(text) or text == "localhost"))


def can_run_image(text: str, engine: DeclaredEngine | None) -> bool:
    """Return whether the agents of an engine can run in an image.

    Args:
        text: of a job; empty: it has none, so every engine can run it.
        engine: None: the machine of the controller, or an engine that is not declared.
    """
    if not text:
        return True
    if engine is None:
        return False
    is_path = text.startswith("/")
    match engine.kind:
        case "kubernetes":
            return not is_path
        case "slurm":
            container = engine.options.get(CONTAINER.name)
            return container is not None and (container != "pyxis" or not is_path or text.endswith(SQUASHFS))
        case "ray":
            return False
