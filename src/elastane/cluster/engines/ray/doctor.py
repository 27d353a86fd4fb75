"""Finds out whether the engine can work here: Python, Ray, its version, and each pool."""

import os
import re
import time
from collections.abc import Mapping

from elastane.cluster.engines.commands import judge_command
from elastane.cluster.engines.ray.driver_process import RayDriver
from elastane.cluster.engines.ray.options import RayOptions, decode_ray_pool
from elastane.cluster.engines.ray.sightings import RayNode, Sight, describe_resources, list_ray_nodes
from elastane.cluster.nouns.agents import Away, EngineFinding
from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line, fold_text

NOBODY = "doctor"
"""A cluster without agents: the doctor makes no actor, and sees none."""
CONNECT_S = 20.0
"""How long the driver may take to connect: the command line waits 30 s for all findings."""
OLDEST = (2, 49)
"""The oldest version of Ray that has the options of actors that the engine uses; tested is 2.60."""
_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})[0-9A-Za-z.+]{0,32}")


async def examine_ray(
    options: RayOptions, pools: Mapping[str, Mapping[str, str]]
) -> tuple[EngineFinding, ...]:
    """Look at all that the engine and its pools need; nothing is started."""
    command = judge_command(options.command[0], options.setup, "the nodes of Ray")
    if not os.access(options.python, os.X_OK):
        missing = f"there is no Python at {options.python}"
        return (EngineFinding(False, missing, "name that of the Ray cluster with the option python"), command)
    driver = RayDriver(options.python, options.address, NOBODY, options.answer_s)
    try:
        version = await driver.find_version(CONNECT_S)
        found = [command, *judge_version(version, options)]
        if isinstance(version, Away):
            return tuple(found)
        sight = await driver.look(NOBODY)
    finally:
        await driver.close()
    if isinstance(sight, Away):
        return (*found, EngineFinding(False, f"Ray does not answer: {sight.why}", "run ray status by hand"))
    return (*found, judge_nodes(sight.nodes), *(judge_ray_pool(*pool, sight) for pool in pools.items()))


def judge_version(version: str | Away, options: RayOptions) -> list[EngineFinding]:
    """Say whether the driver has connected to a Ray that the engine can use."""
    where = "the Ray of this machine" if options.address == "auto" else f"Ray at {options.address}"
    if isinstance(version, Away):
        if "No module named 'ray'" in version.why:
            return [
                EngineFinding(
                    False,
                    f"{options.python} has no ray",
                    "name the Python of the Ray cluster with the option python, or install ray there",
                )
            ]
        return [
            EngineFinding(
                False,
                f"no connection to {where}: {fold_text(version.why)}",
                "make this machine a node of the Ray cluster: ray start --address=HEAD:6379 --num-cpus=0",
            )
        ]
    match = _VERSION.fullmatch(version)
    if match is not None and (int(match[1]), int(match[2])) < OLDEST:
        return [
            EngineFinding(
                False, f"Ray {escape_line(version)} is too old", f"the engine needs {OLDEST[0]}.{OLDEST[1]}"
            )
        ]
    name = f"Ray {match[0]}" if match is not None else "Ray, without a version,"
    return [EngineFinding(True, f"{name} answers at {options.address}")]


def judge_nodes(nodes: tuple[RayNode, ...]) -> EngineFinding:
    """Say how many nodes Ray has."""
    draining = sum(node.draining for node in nodes)
    rest = f", of which it drains {draining}" if draining else ""
    return EngineFinding(True, f"Ray has {len(nodes)} nodes{rest}")


def judge_ray_pool(name: str, options: Mapping[str, str], sight: Sight) -> EngineFinding:
    """Say whether agents of a pool can start."""
    try:
        pool = decode_ray_pool(options)
    except BadInput as error:
        return EngineFinding(False, f"pool {name}: {error.what}", error.do)
    nodes = list_ray_nodes(name, pool, sight, time.time())
    wanted = describe_resources(pool)
    if not nodes:
        return EngineFinding(
            False,
            f"pool {name}: no node of Ray has {wanted} for an agent now",
            "wait for one, or change the options of the pool: resource=CPU where devices are processors",
        )
    devices = sum(node.devices for node in nodes)
    return EngineFinding(
        True, f"pool {name}: {devices} free devices on {len(nodes)} nodes, with {wanted} for each agent"
    )
