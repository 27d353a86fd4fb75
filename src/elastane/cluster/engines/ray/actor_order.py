"""The order for the actor of an agent, as the driver gives it to Ray. Pure."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from elastane.cluster.engines.ray.options import RayOptions, RayPool
from elastane.cluster.nouns.agents import AgentAsk, check_ask
from elastane.common.errors import BadInput

_LOG = re.compile(r"/[^\x00-\x1f\x7f]{0,4000}")


class ActorOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What an actor starts, and what it holds. All users of the Ray cluster can read it.

    Args:
        ticket: the process reads it as one line of its standard input.
        log: file for what the process writes; empty: none.
        holds: resources of Ray.
        needs: resources of which it takes a trace only.
        labels: of a node that it can run on.
        grace_s: how long before ``until_s`` the process gets a notice.
        until_s: when it must have ended, in seconds since 1970; None: never.
    """

    command: tuple[str, ...]
    ticket: str
    log: str
    holds: Mapping[str, float]
    needs: Mapping[str, float]
    labels: Mapping[str, str]
    grace_s: float
    until_s: float | None


def build_order(ask: AgentAsk, pool: RayPool, options: RayOptions) -> ActorOrder:
    """Return the order for the actor of an agent."""
    check_ask(ask)
    if ask.image:
        raise BadInput(
            f"Ray does not run the image {ask.image} of job {ask.job}",
            means="its agents run in the environment of the Ray cluster",
            do="submit the job without an image, or for a pool of Kubernetes or Slurm",
        )
    if ask.log and not _LOG.fullmatch(ask.log):
        raise BadInput(f"agent {ask.id} cannot write to {ask.log!r}", do="name an absolute path")
    return ActorOrder(
        command=build_command(options),
        ticket=ask.ticket,
        log=ask.log,
        holds=pool.list_holdings(ask.devices, ask.cpus, ask.memory_bytes),
        needs=pool.needs,
        labels=pool.labels,
        grace_s=ask.grace_s,
        until_s=ask.until_s,
    )


def build_command(options: RayOptions) -> tuple[str, ...]:
    """Return the command of an agent. It ends as the agent itself: a signal for it reaches no shell."""
    words = (*options.command, "join", "-")
    if not options.setup.strip():
        return words
    return ("/bin/bash", "-c", f'{options.setup.rstrip()}\nexec "$@"', "bash", *words)


def encode_orders(orders: Mapping[str, ActorOrder]) -> dict[str, Any]:
    """Return orders as the driver takes them, by name."""
    return {name: msgspec.to_builtins(order) for name, order in orders.items()}
