"""The options of Kubernetes, as the engine decodes them."""

import pytest

from elastane.cluster.engines.kinds import choose_controller_url
from elastane.cluster.engines.kubernetes.options import (
    KubernetesOptions,
    KubernetesPool,
    Toleration,
    decode_kubernetes_options,
    decode_kubernetes_pool,
)
from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.kubernetes_options import KUBERNETES
from elastane.common.errors import BadField

REGISTRY = "registry"


def test_without_options_processors_are_the_devices():
    assert decode_kubernetes_pool({}) == KubernetesPool(cpus_per_device=1)
    assert decode_kubernetes_pool({"resource": "nvidia.com/gpu"}).cpus_per_device == 0
    assert decode_kubernetes_options({}) == KubernetesOptions()


def test_all_examples_of_options_are_decoded():
    pool = decode_kubernetes_pool({option.name: option.example for option in KUBERNETES.pool})
    assert pool == KubernetesPool(
        resource="nvidia.com/gpu",
        image="team/train:1",
        cpus_per_device=8,
        memory_bytes_per_device=64 << 30,
        node_selector={"gpu": "a100"},
        tolerations=(Toleration(key="nvidia.com/gpu", operator="Exists", effect="NoSchedule"),),
        priority_class="training",
        runtime_class="nvidia",
        queue="team-a",
        workload_priority_class="training",
        growth_priority_class="growth",
    )
    options = decode_kubernetes_options({option.name: option.example for option in KUBERNETES.engine})
    assert options == KubernetesOptions(
        context="east",
        kubeconfig="/home/ada/.kube/config",
        namespace="training",
        image="team/train:1",
        image_pull_secret=REGISTRY,
        service_account="agents",
        volumes=(("home", "/shared/elastane"), ("data", "/data")),
        user=(1000, 1000),
        command=("/opt/train/bin/elastane",),
        shares_home=False,
        elastic_jobs="vision",
        answer_s=10.0,
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a", Toleration(key="a", operator="Exists")),
        ("a=b", Toleration(key="a", operator="Equal", value="b")),
        ("a=:NoExecute", Toleration(key="a", operator="Equal", effect="NoExecute")),
        ("x.io/a=b:NoSchedule", Toleration(key="x.io/a", operator="Equal", value="b", effect="NoSchedule")),
    ],
)
def test_a_toleration_is_one_of_all_values_or_of_one(text, found):
    assert decode_kubernetes_pool({"toleration": text}).tolerations == (found,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resource", "gpu"),
        ("resource", "nvidia.com/"),
        ("image", "a b"),
        ("image", "$(reboot)"),
        ("cpusPerDevice", "0"),
        ("memoryPerDevice", "64"),
        ("nodeSelector", "gpu"),
        ("nodeSelector", "gpu=a,"),
        ("nodeSelector", "-gpu=a"),
        ("toleration", "a=b:Never"),
        ("priorityClassName", "High"),
        ("queue", "team a"),
        ("queue", ""),
        ("growthPriorityClassName", "Low"),
        ("workloadPriorityClassName", "a_b"),
        ("color", "red"),
    ],
)
def test_an_invalid_option_of_a_pool_is_refused(name, value):
    with pytest.raises(BadField, match=rf"options\.{name}: "):
        decode_kubernetes_pool({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("namespace", "Training"),
        ("namespace", "a" * 64),
        ("kubeconfig", "kube/config"),
        ("volume", "home"),
        ("volume", "home:shared"),
        ("volume", "home:/a,b:/c d"),
        ("user", "ada"),
        ("answer", "0s"),
        ("answer", "2 min"),
        ("command", '"'),
        ("context", "a b"),
    ],
)
def test_an_invalid_option_of_the_engine_is_refused(name, value):
    with pytest.raises(BadField, match=rf"options\.{name}: "):
        decode_kubernetes_options({name: value})


def test_pods_reach_the_controller_at_the_address_of_their_engine():
    url = "https://10.0.0.5:7425"
    east = DeclaredEngine(
        name="east", kind="kubernetes", options={"controller": "https://elastane.training:7425"}
    )
    assert choose_controller_url(east, url) == "https://elastane.training:7425"
    assert choose_controller_url(DeclaredEngine(name="east", kind="kubernetes"), url) == url
    assert choose_controller_url(None, url) == url
