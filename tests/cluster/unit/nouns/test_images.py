"""Names of container images, and the engines that can run them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.images import ContainerImage, can_run_image, parse_image
from elastane.common.errors import BadField

DIGEST = f"sha256:{'0a' * 32}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("train", ContainerImage(name="train")),
        ("team/train:1", ContainerImage(name="team/train", tag="1")),
        ("nvcr.io/nvidia/torch:24.01", ContainerImage(registry="nvcr.io", name="nvidia/torch", tag="24.01")),
        ("nvcr.io#nvidia/torch:24.01", ContainerImage(registry="nvcr.io", name="nvidia/torch", tag="24.01")),
        ("localhost/train", ContainerImage(registry="localhost", name="train")),
        ("Host:5000/a/b_c", ContainerImage(registry="Host:5000", name="a/b_c")),
        (f"a/b:1@{DIGEST}", ContainerImage(name="a/b", tag="1", digest=DIGEST)),
        ("/shared/train.sif", ContainerImage(path="/shared/train.sif")),
        ("/shared/sandbox", ContainerImage(path="/shared/sandbox")),
    ],
)
def test_an_image_has_a_name_in_a_registry_or_a_path(text, found):
    assert parse_image(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        " train",
        "Train",
        "a//b",
        "a:",
        "a:1:2",
        "a@sha256:12",
        "user@nvcr.io#a",
        "#a",
        "host#a",
        "nvcr.io#",
        "docker://a",
        "-x",
        "--bind=/:/x",
        "$(id)",
        "a b",
        "a\nb",
        "/",
        "/a/../etc",
        "/a:b",
        "/a,b",
        "train.sif",
        "team/train.sqsh",
        "a" * 600,
    ],
)
def test_another_text_is_no_image(text):
    with pytest.raises(BadField, match=r"^image"):
        parse_image(text)


@given(st.text(alphabet="ab.:/#@-_A0", max_size=30))
def test_an_image_that_is_accepted_is_safe_in_the_spelling_of_each_engine(text):
    try:
        image = parse_image(text)
    except BadField:
        return
    for spelling in (image.path, image.reference, image.in_registry):
        assert not spelling.startswith("-")
    assert bool(image.path) != bool(image.name)
    if image.name:
        # The name that Kubernetes gets is the same image.
        assert parse_image(image.reference) == image


def test_the_digest_counts_for_more_than_the_tag():
    image = parse_image(f"reg.example.com/a/b:1@{DIGEST}")
    assert image.in_registry == f"a/b@{DIGEST}"
    assert image.reference == f"reg.example.com/a/b:1@{DIGEST}"


@pytest.mark.parametrize(
    ("kind", "options", "runs"),
    [
        ("kubernetes", {}, {"team/train:1"}),
        ("slurm", {}, set()),
        ("slurm", {"container": "apptainer"}, {"team/train:1", "/a.sif", "/a.sqsh", "/sandbox"}),
        ("slurm", {"container": "pyxis"}, {"team/train:1", "/a.sqsh"}),
        ("ray", {}, set()),
        (None, {}, set()),
    ],
)
def test_each_engine_runs_the_images_that_it_can(kind, options, runs):
    engine = None if kind is None else DeclaredEngine(name="e", kind=kind, options=options)
    images = ("team/train:1", "/a.sif", "/a.sqsh", "/sandbox")
    assert {image for image in images if can_run_image(image, engine)} == runs
    assert can_run_image("", engine)
