"""The figures of owners as tables, and the page of ``three_owners.py``."""

from collections.abc import Mapping, Sequence

from elastane.run.nouns.records import LedgerLine

from pilot.checks import Check
from pilot.drawing import draw_chart
from pilot.owners import OwnerFigures, Pause, PriceEffect
from pilot.page import (
    build_page,
    render_arm,
    render_checks,
    render_events,
    render_footer,
    render_heading,
    render_table,
    render_tiles,
)
from pilot.record import ArmRecord
from pilot.scenario import Scenario
from pilot.words import format_seconds

HEAD = (
    "",
    "rounds",
    "samples",
    "MB sent",
    "MB received",
    "device-seconds",
    "cost of devices",
    "cost of bytes",
    "without it",
)


def describe_pause(pause: Pause) -> str:
    return f"{pause.first} to {pause.last}, {pause.seconds:.1f} s"


def build_owner_rows(owners: Mapping[str, OwnerFigures]) -> list[tuple[str, ...]]:
    """Return a head, then a line for each owner."""
    lines = [
        (
            name,
            f"{one.rounds}",
            f"{one.samples:,}",
            f"{one.sent_bytes / 1e6:.1f}",
            f"{one.received_bytes / 1e6:.1f}",
            f"{one.device_s:.0f}",
            f"{one.device_cost:.3f}",
            f"{one.egress_cost:.4f}",
            ", ".join(map(describe_pause, one.pauses)) or "none",
        )
        for name, one in owners.items()
    ]
    return [HEAD, *lines]


def build_price_rows(effect: PriceEffect) -> list[tuple[str, ...]]:
    """Return a head, then a line for each owner, and the sums."""
    moments = (effect.before, effect.at_once, effect.after)
    lines = [
        (
            name,
            *(f"{rates[name].price:g}" for rates in moments[:2]),
            *(f"{rates[name].workers}" for rates in (effect.before, effect.after)),
            *(f"{rates[name].per_h:.2f}" for rates in moments),
        )
        for name in effect.before
    ]
    workers = (sum(one.workers for one in rates.values()) for rates in (effect.before, effect.after))
    sums = (sum(one.per_h for one in rates.values()) for rates in moments)
    head = (
        "",
        *("price before", "price then", "workers before", "workers later"),
        *("cost of an hour before", "at once", "later"),
    )
    return [head, *lines, ("together", "", "", *map(str, workers), *(f"{one:.2f}" for one in sums))]


def describe_price(effect: PriceEffect) -> str:
    price = effect.at_once[effect.owner].price
    return f"A device of {effect.owner} costs {price:g} an hour from second {effect.at_s:.0f} on"


def render_owners(
    scenario: Scenario,
    arm: ArmRecord,
    ledger: Sequence[LedgerLine],
    owners: Mapping[str, OwnerFigures],
    effects: Sequence[PriceEffect],
    checks: Sequence[Check],
    machine: Mapping[str, str | int],
    *,
    outcome: str,
) -> str:
    """Return the page, with all names escaped.

    Args:
        scenario: its events have the times at which they have happened.
        arm: its actions contain the changes of the run.
        ledger: of its only job.
        outcome: what the script has printed at its end.
    """
    losses = [(line.time - arm.began_s, line.loss) for line in ledger]
    cut = sum(len(line.absent) > 0 for line in ledger)
    tiles = [
        ("rounds", f"{len(ledger)}", f"{cut} of them without an owner"),
        ("time", format_seconds(arm.ended_s), "from the submission to the end"),
        ("loss", f"{ledger[-1].loss:.3f}", f"after {ledger[0].loss:.3f}; {outcome}"),
        (
            "cost",
            f"{sum(one.cost for one in owners.values()):.3f}",
            f"{sum(one.egress_cost for one in owners.values()):.4f} of it for bytes between sites",
        ),
    ]
    about = "Each owner reads its own data only, and rounds leave out absent owners."
    return build_page(
        render_heading(scenario, checks, f"{len(owners)} owners train one model. {about}"),
        render_tiles(tiles),
        render_arm(arm, draw_chart(arm, scenario, arm.ended_s + 2, losses)),
        render_table("What each owner gave and got", *build_owner_rows(owners)),
        *(render_table(describe_price(effect), *build_price_rows(effect)) for effect in effects),
        render_checks(checks),
        render_events(arm),
        render_footer(scenario, machine),
    )
