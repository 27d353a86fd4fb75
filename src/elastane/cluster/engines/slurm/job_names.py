"""The names of the jobs of agents: an agent's job is found again by the id in its name."""

import re

from elastane.cluster.nouns.agents import AGENT_ID, AgentId, belongs_to

PREFIX = "elastane-"
_JOB_NAME = re.compile(rf"{PREFIX}({AGENT_ID})")


def name_job(agent: AgentId) -> str:
    """Return the name of an agent's job."""
    return f"{PREFIX}{agent}"


def find_agent_of_job(name: str, cluster: str) -> AgentId | None:
    """Return the agent of a cluster that a job belongs to; None: to none."""
    match = _JOB_NAME.fullmatch(name)
    return match[1] if match is not None and belongs_to(match[1], cluster) else None
