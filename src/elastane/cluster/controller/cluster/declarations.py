"""The declarations of operators as one value: consistency and differences. Pure."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from elastane.cluster.nouns.cluster import Snapshot
from elastane.cluster.nouns.cluster_checks import check_cluster, check_engines
from elastane.cluster.nouns.config import (
    Change,
    Cohort,
    Config,
    DeclaredEngine,
    EgressPrices,
    PriorityClass,
    Reservation,
    SchedulingRules,
    Team,
    Trigger,
)
from elastane.cluster.nouns.pools import Pool
from elastane.common.field_checks import (
    check_minimum,
    check_name,
    check_remark,
    check_unique,
    make_field_error,
)

Kind: TypeAlias = Literal[
    "cohorts", "teams", "priorities", "engines", "pools", "egress", "reservations", "triggers", "rules"
]
NAMED: tuple[Kind, ...] = tuple(kind for kind in get_args(Kind) if kind != "rules")
"""Kinds with documents that have names. Of rules there is one set, which is called `ONE`."""
PRIVATE: frozenset[Kind] = frozenset({"engines"})
"""Kinds that only operators read: a line of shell may hold a password."""
ONE = "cluster"

NamedDocument: TypeAlias = (
    Cohort | Team | PriorityClass | DeclaredEngine | Pool | EgressPrices | Reservation | Trigger
)
Document: TypeAlias = NamedDocument | SchedulingRules
KINDS: dict[Kind, type[Document]] = {
    "cohorts": Cohort,
    "teams": Team,
    "priorities": PriorityClass,
    "engines": DeclaredEngine,
    "pools": Pool,
    "egress": EgressPrices,
    "reservations": Reservation,
    "triggers": Trigger,
    "rules": SchedulingRules,
}
assert tuple(KINDS) == get_args(Kind)


def build_config(documents: Iterable[tuple[Kind, Document]]) -> Config:
    """Return all documents as one value, with every kind present, sorted by name."""
    found: dict[str, list[Document]] = {kind: [] for kind in NAMED}
    rules = SchedulingRules()
    for kind, document in documents:
        if isinstance(document, SchedulingRules):
            rules = document
        else:
            found[kind].append(document)
    return msgspec.convert(
        {kind: tuple(sorted(some, key=get_name)) for kind, some in found.items()} | {"rules": rules}, Config
    )


def map_documents(config: Config) -> dict[tuple[Kind, str], Document]:
    """Return the documents of a configuration by kind and name."""
    found: dict[tuple[Kind, str], Document] = {}
    for kind in NAMED:
        for document in getattr(config, kind) or ():
            found[kind, get_name(document)] = document
    if config.rules is not None:
        found["rules", ONE] = config.rules
    return found


def get_name(document: Document) -> str:
    return ONE if isinstance(document, SchedulingRules) else document.name


def merge_configs(standing: Config, wanted: Config) -> Config:
    """Return the configuration after ``wanted`` is applied. Kinds that ``wanted`` lacks stay as they are."""
    kinds = {kind: getattr(wanted, kind) for kind in KINDS if getattr(wanted, kind) is not None}
    return msgspec.structs.replace(standing, **kinds)


def put_document(standing: Config, kind: Kind, document: Document) -> Config:
    """Return the configuration with this document, in place of the one with its name."""
    if isinstance(document, SchedulingRules):
        return msgspec.structs.replace(standing, rules=document)
    return _replace_document(standing, kind, document.name, (document,))


def remove_document(standing: Config, kind: Kind, name: str) -> Config:
    """Return the configuration without this document."""
    return _replace_document(standing, kind, name, ())


def list_mentions(standing: Config, kind: Kind, name: str) -> tuple[str, ...]:
    """Return the other documents that name this one, in words: ``the quota of vision``."""
    if kind == "cohorts":
        below = [f"cohort {cohort.name}" for cohort in standing.cohorts or () if cohort.parent == name]
        return (*below, *(f"team {team.name}" for team in standing.teams or () if team.cohort == name))
    if kind == "engines":
        return tuple(f"pool {pool.name}" for pool in standing.pools or () if pool.engine == name)
    if kind == "pools":
        owners: tuple[Cohort | Team, ...] = (*(standing.cohorts or ()), *(standing.teams or ()))
        return (
            *(
                f"the quota of {owner.name}"
                for owner in owners
                for quota in owner.quotas
                if quota.pool == name
            ),
            *(
                f"reservation {reservation.name}"
                for reservation in standing.reservations or ()
                if reservation.pool == name
            ),
            *(f"trigger {trigger.name}" for trigger in standing.triggers or () if trigger.pool == name),
        )
    return ()


def _replace_document(standing: Config, kind: Kind, name: str, new: tuple[Document, ...]) -> Config:
    others = tuple(document for document in getattr(standing, kind) or () if get_name(document) != name)
    return msgspec.structs.replace(standing, **{kind: tuple(sorted((*others, *new), key=get_name))})


def diff_configs(standing: Config, wanted: Config) -> tuple[Change, ...]:
    """Return the changes that applying ``wanted`` would make, in the order of kinds and names."""
    before, after = map_documents(standing), map_documents(merge_configs(standing, wanted))
    changes = []
    for kind, name in sorted(
        before.keys() | after.keys(), key=lambda key: (tuple(KINDS).index(key[0]), key[1])
    ):
        old, new = before.get((kind, name)), after.get((kind, name))
        if old != new:
            changes.append(
                Change(
                    kind=kind,
                    name=name,
                    change="add" if old is None else "remove" if new is None else "change",
                    before=None if old is None else encode_document(old),
                    after=None if new is None else encode_document(new),
                )
            )
    return tuple(changes)


def encode_document(document: msgspec.Struct) -> dict[str, Any]:
    """Return a document in its JSON form."""
    whole: dict[str, Any] = msgspec.to_builtins(document)
    return whole


# -- consistency -------------------------------------------------------------------------------------------


def check_config(config: Config) -> None:
    """Check that all values are possible, that every mentioned name exists, and that the quotas form a tree.

    Raises:
        BadField: the first field that is wrong, with its place.
    """
    check_cluster(
        Snapshot(
            now_s=0.0,
            pools=config.pools or (),
            teams=config.teams or (),
            cohorts=config.cohorts or (),
            priorities=config.priorities or (),
            egress=config.egress or (),
            reservations=config.reservations or (),
            rules=config.rules or SchedulingRules(),
        )
    )
    check_engines(config.engines or (), config.pools or ())
    for priority in config.priorities or ():
        check_name("priorities", priority.name)
        check_remark(f"priorities.{priority.name}.description", priority.description)
    for pool in config.pools or ():
        check_remark(f"pools.{pool.name}.device", pool.device)
        check_remark(f"pools.{pool.name}.site", pool.site)
        for key, value in pool.labels.items():
            check_remark(f"pools.{pool.name}.labels", key)
            check_remark(f"pools.{pool.name}.labels.{key}", value)
    for team in config.teams or ():
        for site in team.sites:
            check_remark(f"teams.{team.name}.sites", site)
    pools = [pool.name for pool in config.pools or ()]
    check_unique("triggers", (trigger.name for trigger in config.triggers or ()))
    for trigger in config.triggers or ():
        check_name("triggers", trigger.name)
        check_remark(f"triggers.{trigger.name}.metric", trigger.metric)
        check_minimum(f"triggers.{trigger.name}.limit", trigger.limit, 0)
        if trigger.above is None and trigger.below is None:
            raise make_field_error(
                f"triggers.{trigger.name}",
                "has neither above nor below",
                "write for example above: 1000",
                means="it would never set its limit",
            )
        if trigger.pool not in pools:
            known = ", ".join(pools) or "there is none"
            raise make_field_error(
                f"triggers.{trigger.name}.pool",
                f"there is no pool {trigger.pool!r}",
                f"write one of: {known}",
            )
