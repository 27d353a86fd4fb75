"""What operators declare, as one value: is it consistent, and how do two differ? Pure."""

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from elastane.api.pools import Pool
from elastane.api.priorities import PriorityClass
from elastane.api.quotas import Cohort, Quota, Team
from elastane.api.reservations import Reservation
from elastane.api.rules import Rules
from elastane.api.wire import Change, Config, Trigger
from elastane.controller.submission import BadField, named

Kind: TypeAlias = Literal["cohorts", "teams", "priorities", "pools", "reservations", "triggers", "rules"]
NAMED: tuple[Kind, ...] = ("cohorts", "teams", "priorities", "pools", "reservations", "triggers")
"""Kinds of which there are many; of rules there is one set, called `ONE`."""
ONE = "cluster"

Named: TypeAlias = Cohort | Team | PriorityClass | Pool | Reservation | Trigger
Document: TypeAlias = Named | Rules
KINDS: dict[Kind, type[Document]] = {
    "cohorts": Cohort,
    "teams": Team,
    "priorities": PriorityClass,
    "pools": Pool,
    "reservations": Reservation,
    "triggers": Trigger,
    "rules": Rules,
}
assert tuple(KINDS) == get_args(Kind)  # noqa: S101 - one list, read by types and by people


def config_of(documents: Iterable[tuple[Kind, Document]]) -> Config:
    """All documents as one, every kind present; sorted by name."""
    found: dict[str, list[Document]] = {kind: [] for kind in NAMED}
    rules = Rules()
    for kind, document in documents:
        if isinstance(document, Rules):
            rules = document
        else:
            found[kind].append(document)
    return msgspec.convert(
        {kind: tuple(sorted(some, key=name_of)) for kind, some in found.items()} | {"rules": rules}, Config
    )


def documents_of(config: Config) -> dict[tuple[Kind, str], Document]:
    """Each document of those kinds that the configuration speaks of, by kind and name."""
    found: dict[tuple[Kind, str], Document] = {}
    for kind in NAMED:
        for document in getattr(config, kind) or ():
            found[kind, name_of(document)] = document
    if config.rules is not None:
        found["rules", ONE] = config.rules
    return found


def name_of(document: Document) -> str:
    return ONE if isinstance(document, Rules) else document.name


def merged(standing: Config, wanted: Config) -> Config:
    """What there would be if ``wanted`` were applied: the kinds it speaks of are as it says, others stay."""
    kinds = {kind: getattr(wanted, kind) for kind in KINDS if getattr(wanted, kind) is not None}
    return msgspec.structs.replace(standing, **kinds)


def having(standing: Config, kind: Kind, document: Document) -> Config:
    """The configuration with this document in it, in place of the one with its name."""
    if isinstance(document, Rules):
        return msgspec.structs.replace(standing, rules=document)
    return _replaced(standing, kind, document.name, (document,))


def lacking(standing: Config, kind: Kind, name: str) -> Config:
    """The configuration without this document."""
    return _replaced(standing, kind, name, ())


def _replaced(standing: Config, kind: Kind, name: str, new: tuple[Document, ...]) -> Config:
    others = tuple(one for one in getattr(standing, kind) or () if name_of(one) != name)
    return msgspec.structs.replace(standing, **{kind: tuple(sorted((*others, *new), key=name_of))})


def diff(standing: Config, wanted: Config) -> tuple[Change, ...]:
    """What applying ``wanted`` would add, change and remove, in the order of kinds and names."""
    before, after = documents_of(standing), documents_of(merged(standing, wanted))
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
                    before=None if old is None else plain(old),
                    after=None if new is None else plain(new),
                )
            )
    return tuple(changes)


def plain(document: Document) -> dict[str, Any]:
    """A document as JSON has it."""
    whole: dict[str, Any] = msgspec.to_builtins(document)
    return whole


# -- consistency -------------------------------------------------------------------------------------------


def check(config: Config) -> None:
    """Whether the numbers make sense, every name that is mentioned is there, and the quotas are a tree.

    Raises:
        BadField: the first thing that is wrong, with its place.
    """
    for kind in NAMED:
        names = tuple(name_of(one) for one in getattr(config, kind) or ())
        for index, name in enumerate(names):
            named(f"$.{kind}[{index}].name", name)
        _unique(kind, names)
    _numbers(config)
    cohorts = {one.name: one for one in config.cohorts or ()}
    teams = {one.name for one in config.teams or ()}
    pools = {one.name for one in config.pools or ()}
    if both := sorted(cohorts.keys() & teams):
        raise BadField(
            f"$.teams[{both[0]}].name",
            f"{both[0]!r} is a cohort and a team",
            means="quotas are a tree, and each of its nodes has a name of its own",
            do="rename one of them",
        )
    for cohort in cohorts.values():
        _known(f"$.cohorts[{cohort.name}].parent", "cohort", cohort.parent, cohorts.keys())
        _pools_known(f"$.cohorts[{cohort.name}]", cohort.quotas, pools)
    _acyclic(cohorts)
    for team in config.teams or ():
        _known(f"$.teams[{team.name}].cohort", "cohort", team.cohort, cohorts.keys())
        _pools_known(f"$.teams[{team.name}]", team.quotas, pools)
    for reservation in config.reservations or ():
        _known(f"$.reservations[{reservation.name}].pool", "pool", reservation.pool, pools)
    for trigger in config.triggers or ():
        _known(f"$.triggers[{trigger.name}].pool", "pool", trigger.pool, pools)


def _numbers(config: Config) -> None:
    for pool in config.pools or ():
        where = f"$.pools[{pool.name}]"
        _bounded(f"{where}.devices", pool.devices)
        _bounded(f"{where}.leaving", pool.leaving, most=pool.devices)
        _bounded(f"{where}.devicesPerNode", pool.devices_per_node, least=1)
        _bounded(f"{where}.price", pool.price)
    for kind, nodes in (("cohorts", config.cohorts or ()), ("teams", config.teams or ())):
        for node in nodes:
            where = f"$.{kind}[{node.name}]"
            _bounded(f"{where}.weight", node.weight, least=1e-6)
            for index, quota in enumerate(node.quotas):
                at = f"{where}.quotas[{index}]"
                _bounded(f"{at}.nominalQuota", quota.nominal_quota)
                _bounded(f"{at}.borrowingLimit", quota.borrowing_limit)
                _bounded(f"{at}.lendingLimit", quota.lending_limit, most=quota.nominal_quota)
    for reservation in config.reservations or ():
        _bounded(f"$.reservations[{reservation.name}].devices", reservation.devices)
        _bounded(f"$.reservations[{reservation.name}].announcedAheadS", reservation.announced_ahead_s)
    for trigger in config.triggers or ():
        _bounded(f"$.triggers[{trigger.name}].limit", trigger.limit)
    if config.rules is not None:
        for name in Rules.__struct_fields__:
            _bounded(f"$.rules.{name}", getattr(config.rules, name))


def _bounded(field: str, value: float | None, *, least: float = 0, most: float = 1e9) -> None:
    if value is not None and not least <= value <= most:
        raise BadField(field, f"{value:g} is not between {least:g} and {most:g}", do="write a number that is")


def _unique(kind: str, names: tuple[str, ...]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise BadField(
                f"$.{kind}[{index}].name", f"there are two {kind} called {name!r}", do="rename one"
            )


def _known(field: str, noun: str, name: str, known: Iterable[str]) -> None:
    names = sorted(known)
    if name and name not in names:
        raise BadField(
            field,
            f"there is no {noun} {name!r}",
            means=f"known: {', '.join(names) or 'none'}",
            do=f"declare it, or name another {noun}",
        )


def _pools_known(field: str, quotas: tuple[Quota, ...], pools: set[str]) -> None:
    seen: set[str] = set()
    for index, quota in enumerate(quotas):
        _known(f"{field}.quotas[{index}].pool", "pool", quota.pool, pools)
        if quota.pool in seen:
            raise BadField(
                f"{field}.quotas[{index}].pool", f"two quotas of pool {quota.pool!r}", do="make them one"
            )
        seen.add(quota.pool)


def _acyclic(cohorts: dict[str, Cohort]) -> None:
    safe: set[str] = set()
    for name in cohorts:
        path: list[str] = []
        at = name
        while at and at not in safe:
            if at in path:
                raise BadField(
                    f"$.cohorts[{at}].parent",
                    f"cohort {at!r} is below itself: {' < '.join([*path[path.index(at) :], at])}",
                    means="quotas are a tree",
                    do="give one of them another parent, or none",
                )
            path.append(at)
            at = cohorts[at].parent
        safe |= set(path)
