"""Engine and kinds of devices of a job that is submitted inside a Ray cluster; see `elastane.ray`.

Nothing here imports Ray.
"""

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.pools import Pool
from elastane.common.connections.controller_connection import NotFound, RequestRefused
from elastane.common.connections.controller_context import Context, find_context, read_context
from elastane.common.errors import BadInput

ENGINE = "ray"
"""Name of the engine, unless another one is given."""
COPIES = "working_dir_files"
"""Folder of a node where Ray keeps its copies of working directories."""
FORBIDDEN = 403
_ADDRESS = re.compile(r"[A-Za-z0-9_.\[\]:-]+:[0-9]{1,5}")


def locate_script(script: str | Path) -> Path:
    """Return the absolute path of a script.

    Raises:
        BadInput: the file is missing, or it is in a copy of a working directory that only this node has.
    """
    path = Path(script).absolute()
    if not path.is_file():
        raise BadInput(f"there is no script {path}", do="check the path")
    if COPIES in path.parts:
        raise BadInput(
            f"{path} is a copy that Ray has made on this node for one of its jobs",
            means="workers on other nodes would not find it; nothing was submitted",
            do="name the script by a path that all nodes share",
        )
    return path


def find_ray_address() -> str:
    """Return the address of the Ray cluster that this process belongs to; empty: none is known."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    address = os.environ.get("RAY_ADDRESS", "")
    return address if _ADDRESS.fullmatch(address) else ""


def find_controller_of_user(address: str) -> Context:
    """Return the controller that this user works with.

    Args:
        address: of the Ray cluster; empty: unknown.

    Raises:
        BadInput: none is configured; the error says how to start one for this Ray cluster.
    """
    variables = ("ELASTANE_URL", "ELASTANE_TOKEN")
    if read_context() is None and not any(os.environ.get(variable) for variable in variables):
        raise BadInput(
            "no controller is configured",
            means="a controller decides how many workers a job has; nothing was submitted",
            do="start one on a node of this Ray cluster: "
            "elastane up -d --listen HOST:7425 --tls-cert FILE --tls-key FILE; "
            f"{describe_declaration(ENGINE, address)}. For one that runs: elastane login URL, or set "
            f"{' and '.join(variables)}",
        )
    return find_context()


def describe_declaration(engine: str, address: str) -> str:
    """Return the commands that declare an engine for this Ray cluster, and a pool in it."""
    at = f" --option address={address}" if address else ""
    return (
        f"elastane engine set {engine} --kind ray --option python={sys.executable}{at}; "
        f"elastane pool set POOL --device KIND --engine {engine}"
    )


def find_engine(cluster: Cluster, name: str) -> DeclaredEngine | None:
    """Return an engine; None: the user may not read engines, as only operators may.

    Raises:
        BadInput: the controller has no such engine.
    """
    try:
        return cluster.documents.get(DeclaredEngine, name)
    except NotFound as error:
        commands = describe_declaration(name, find_ray_address())
        raise BadInput(
            f"the controller has no engine {name}",
            means="it cannot start workers in this Ray cluster; nothing was submitted",
            do=f"declare it, or name another one with engine=: {commands}",
        ) from error
    except RequestRefused as error:
        if error.problem.status == FORBIDDEN:
            return None
        raise


def check_engine(found: DeclaredEngine | None, name: str, address: str) -> None:
    """Check that an engine is for this Ray cluster, as far as its declaration tells.

    Args:
        found: the declaration; None: it may not be read.
        address: of this Ray cluster; empty: unknown.
    """
    if found is None:
        return
    if found.kind != "ray":
        raise BadInput(
            f"engine {name} is of kind {found.kind}",
            means="it does not start workers in a Ray cluster; nothing was submitted",
            do="name one of kind ray with engine=",
        )
    declared = found.options.get("address", "auto")
    if address and declared not in ("auto", address):
        raise BadInput(
            f"engine {name} is for the Ray cluster at {declared}, and this process is in that at {address}",
            means="the job would train elsewhere; nothing was submitted",
            do="name the engine of this Ray cluster with engine=, or correct the address of the engine",
        )


def choose_kinds(pools: Iterable[Pool], engine: str) -> tuple[str, ...]:
    """Return the kinds of devices that only pools of an engine have.

    Raises:
        BadInput: it has no devices of its own.
    """
    pools = tuple(pools)
    own = list(dict.fromkeys(pool.device for pool in pools if pool.engine == engine))
    if not own:
        raise BadInput(
            f"the controller has no pool of engine {engine}",
            means="it has no devices in this Ray cluster; nothing was submitted",
            do=f"elastane pool set POOL --device KIND --engine {engine}, or name another engine with engine=",
        )
    elsewhere = {pool.device: pool.name for pool in pools if pool.engine != engine}
    found = tuple(kind for kind in own if kind not in elsewhere)
    if not found:
        raise BadInput(
            f"pool {elsewhere[own[0]]}, which is not of engine {engine}, has devices of kind {own[0]} too",
            means="the job could train there; nothing was submitted",
            do=f"give the devices of engine {engine} another kind (elastane pool set POOL --device KIND), or "
            f"accept all pools: kinds=[{own[0]!r}]",
        )
    return found
