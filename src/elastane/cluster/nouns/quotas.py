"""Quotas: the share of the cluster that each team and cohort owns, as a tree with teams as its leaves.

As in Kueue, a node owns its nominal quota and the devices that its children lend. It lends the devices that
it does not use, and borrows from its parent the devices that its siblings do not use. The root of the tree is
the cluster, which owns every device that no other node owns.
"""

import msgspec


class Quota(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A node's share of one pool, in devices.

    Args:
        pool: the pool.
        nominal_quota: devices the node owns.
        borrowing_limit: most devices it may use beyond that; None: no limit.
        lending_limit: most of its devices that others may use while they are idle; None: all.
    """

    pool: str
    nominal_quota: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None


class Cohort(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """An inner node: cohorts and teams that lend to each other before they lend to others.

    Args:
        name: unique among cohorts and teams.
        parent: a cohort; empty: the cluster.
        quotas: at most one per pool.
        weight: its share of idle devices, relative to its siblings'.
    """

    name: str
    parent: str = ""
    quotas: tuple[Quota, ...] = ()
    weight: float = 1.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Limits on one team's use of the controller itself, so that enough is left for other teams.

    Args:
        jobs: jobs of the team that have not ended.
        jobs_per_user: those of one user in the team.
        tokens: valid tokens of the team; within a day, ten times as many may be created.
        watchers: open event streams with tokens of the team.
        stored_mib: MiB of the specs of its jobs; an ended job counts until it is forgotten.
    """

    jobs: int = 2000
    jobs_per_user: int = 1000
    tokens: int = 100
    watchers: int = 200
    stored_mib: int = 256


class Team(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A leaf of the tree: the owner of jobs.

    Args:
        name: unique among cohorts and teams.
        cohort: the cohort it lends to first; empty: the cluster.
        quotas: at most one per pool; in a pool without one it owns nothing and borrows.
        weight: its share of idle devices, relative to its siblings'.
        limits: limits of its jobs, tokens and streams; a team that is not declared has the defaults.
    """

    name: str
    cohort: str = ""
    quotas: tuple[Quota, ...] = ()
    weight: float = 1.0
    limits: Limits = Limits()
