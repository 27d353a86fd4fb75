"""The reservations of the next week, and the effect of a changed configuration before it is applied."""

import time
from collections.abc import Mapping

from elastane.cluster.client.config_file import format_config, parse_config
from elastane.cluster.dashboard.drawings import draw_reserved
from elastane.cluster.dashboard.feed import ClusterFeed
from elastane.cluster.dashboard.rendering import PageContent
from elastane.cluster.nouns.rest import Forecast
from elastane.cluster.scheduler.calendar import list_reservation_times
from elastane.common.errors import BadInput

WEEK_S = 7 * 24 * 3600.0
MOST_ROWS = 200


def build_calendar_page(feed: ClusterFeed) -> PageContent:
    now_s = time.time()
    times = [
        (begin_s, end_s, reservation)
        for reservation in feed.sight.reservations
        for begin_s, end_s in list_reservation_times(reservation, now_s, now_s + WEEK_S)
    ]
    times.sort(key=lambda entry: entry[:2])
    pools = sorted({reservation.pool for _, _, reservation in times})
    return PageContent(
        title="Calendar",
        template="calendar.html",
        parts=("calendar_times",),
        facts={
            "now_s": now_s,
            "times": times[:MOST_ROWS],
            "charts": [
                (
                    pool,
                    draw_reserved(
                        pool,
                        [
                            (begin_s, end_s, reservation.devices)
                            for begin_s, end_s, reservation in times
                            if reservation.pool == pool
                        ],
                        now_s,
                        now_s + WEEK_S,
                    ),
                )
                for pool in pools
            ],
        },
    )


def build_policy_page(feed: ClusterFeed, form: Mapping[str, str]) -> PageContent:
    """Return the page that foresees the effect of the ``config`` of a form, at first the present one."""
    text = form.get("config", "")
    problem, foreseen = _foresee(feed, text) if text else ((), None)
    text = text or feed.ask(lambda cluster: format_config(cluster.documents.config()))
    return PageContent(
        title="What if",
        template="policy.html",
        parts=(),
        facts={"config": text, "problem": problem, "foreseen": foreseen, "checked": bool(form.get("config"))},
    )


def _foresee(feed: ClusterFeed, text: str) -> tuple[tuple[str, ...], Forecast | None]:
    try:
        wanted = parse_config(text)
        return (), feed.ask(lambda cluster: cluster.documents.check(wanted))
    except BadInput as error:
        what = f"The configuration {error.what}" if error.what.startswith(("is ", "has ")) else error.what
        return tuple(filter(None, (what, error.means, error.do))), None
