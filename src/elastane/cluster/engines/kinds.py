"""The kinds of engines that operators can declare."""

from collections.abc import Mapping
from typing import assert_never
from urllib.parse import urlsplit

from elastane.cluster.nouns.agents import AgentEngine, EngineFinding
from elastane.cluster.nouns.config import DeclaredEngine

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def open_engine(document: DeclaredEngine, cluster: str) -> AgentEngine:
    """Return the engine that a document declares; it touches no agents of other clusters."""
    match document.kind:
        case "slurm":
            from elastane.cluster.engines.slurm.engine import SlurmEngine
            from elastane.cluster.engines.slurm.options import decode_slurm_options

            return SlurmEngine(cluster, decode_slurm_options(document.options))
        case "kubernetes":
            from elastane.cluster.engines.kubernetes.engine import KubernetesEngine
            from elastane.cluster.engines.kubernetes.options import decode_kubernetes_options

            return KubernetesEngine(cluster, decode_kubernetes_options(document.options))
        case "ray":
            from elastane.cluster.engines.ray.engine import RayEngine
            from elastane.cluster.engines.ray.options import decode_ray_options

            return RayEngine(cluster, decode_ray_options(document.options))
        case _:
            assert_never(document.kind)


async def examine_engine(
    document: DeclaredEngine, pools: Mapping[str, Mapping[str, str]], url: str
) -> tuple[EngineFinding, ...]:
    """Look at all that an engine and its pools need, with agents at a URL; nothing is started."""
    match document.kind:
        case "slurm":
            from elastane.cluster.engines.slurm.doctor import examine_slurm
            from elastane.cluster.engines.slurm.options import decode_slurm_options

            found = await examine_slurm(decode_slurm_options(document.options), pools)
        case "kubernetes":
            from elastane.cluster.engines.kubernetes.doctor import examine_kubernetes
            from elastane.cluster.engines.kubernetes.options import decode_kubernetes_options

            found = await examine_kubernetes(decode_kubernetes_options(document.options), pools)
        case "ray":
            from elastane.cluster.engines.ray.doctor import examine_ray
            from elastane.cluster.engines.ray.options import decode_ray_options

            found = await examine_ray(decode_ray_options(document.options), pools)
        case _:
            assert_never(document.kind)
    return (judge_address(choose_controller_url(document, url)), *found)


def choose_controller_url(document: DeclaredEngine | None, url: str) -> str:
    """Return the address of a controller for agents, which an engine may replace; None: it cannot be read."""
    return url if document is None else document.options.get("controller", url)


def find_queue(document: DeclaredEngine, pool: Mapping[str, str], options: Mapping[str, str]) -> str:
    """Return the queue, by the options of pool and job, that lets gangs start; empty: agents wait in none."""
    if document.kind != "kubernetes":
        return ""
    from elastane.cluster.engines.kubernetes.kueue import find_queue_of_pods

    return find_queue_of_pods(pool, options)


def judge_address(url: str) -> EngineFinding:
    """Say whether agents on other machines reach the controller at its address."""
    if urlsplit(url).hostname in LOOPBACK:
        return EngineFinding(
            False,
            f"agents get the address {url}, which leads other machines to themselves",
            "start the controller with --listen ADDRESS:PORT of its network, --tls-cert and --tls-key",
        )
    return EngineFinding(True, f"agents get the address {url}")
