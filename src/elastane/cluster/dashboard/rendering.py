"""Pages from templates. The template engine escapes every text; it is given no markup but that of charts.

Of all open pages with one address, one draws.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from elastane.cluster.nouns.job_words import (
    find_shown_state,
    format_age,
    format_job_loss,
    format_job_speed,
    format_job_workers,
)
from elastane.common.durations import format_duration
from elastane.common.safe_text import escape_line, escape_text
from elastane.run.observability.quantities import format_ms, format_size

LONGEST_TEXT = 4000
MANY_HOURS = 10
FRESH_S = 0.6
KEPT = 64


class PageContent(msgspec.Struct, frozen=True, kw_only=True):
    """A page before it is drawn; ``parts`` are the templates of those that change while it is open."""

    title: str
    template: str
    parts: tuple[str, ...]
    facts: Mapping[str, Any]


@cache
def find_environment() -> Environment:
    """Return the template engine, with the words that templates use."""
    found = Environment(
        loader=PackageLoader("elastane.cluster.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {
        "age": format_age,
        "duration": lambda seconds: "\u2013" if seconds is None else format_duration(seconds, parts=2),
        "line": lambda text: escape_line(str(text), LONGEST_TEXT),
        "text": lambda text: escape_text(str(text), 200_000),
        "moment": render_moment,
        "number": lambda value: "\u2013" if value is None else f"{value:,.0f}",
        "short": lambda value: "\u2013" if value is None else f"{value:,.2f}".rstrip("0").rstrip("."),
        "share": lambda value: "\u2013" if value is None else f"{100 * value:.0f} %",
        "money": lambda value: "\u2013" if value is None else f"{value:,.2f}",
        "hours": format_hours,
        "size": format_size,
        "ms": format_ms,
        "state": find_shown_state,
        "workers": format_job_workers,
        "loss": format_job_loss,
        "speed": format_job_speed,
    }
    return found


def format_hours(seconds: float) -> str:
    """Return seconds as hours: three digits of few, one decimal place of many."""
    hours = seconds / 3600
    return f"{hours:,.1f}" if hours >= MANY_HOURS else f"{hours:.3g}"


def render_moment(time_s: float | None) -> Markup:
    """Return a time, which the script of the page shows in the zone of the reader."""
    try:
        moment = None if time_s is None else datetime.fromtimestamp(time_s, UTC)
    except (ValueError, OverflowError, OSError):
        moment = None  # no year of four digits; a record of a job may have any number
    if moment is None:
        return Markup("\u2013")
    return Markup('<time datetime="{}">{} UTC</time>').format(
        f"{moment:%Y-%m-%dT%H:%M:%SZ}", f"{moment:%Y-%m-%d %H:%M:%S}"
    )


class PagePart(msgspec.Struct, frozen=True):
    """A drawn part of a page, and a digest by which the page tells whether it has it."""

    name: str
    html: str
    digest: str


def render_parts(content: PageContent) -> tuple[PagePart, ...]:
    environment = find_environment()
    found = []
    for name in content.parts:
        html = environment.get_template(f"parts/{name}.html").render(content.facts)
        found.append(PagePart(name, html, hashlib.sha256(html.encode()).hexdigest()[:16]))
    return tuple(found)


def render_page(content: PageContent, around: Mapping[str, Any]) -> str:
    """Return the whole page, with the reader, the path and a message around it."""
    parts = {part.name: part for part in render_parts(content)}

    def render_part(name: str) -> Markup:
        part = parts[name]
        return Markup('<section class="part" id="part-{}" data-digest="{}">{}</section>').format(
            part.name,
            part.digest,
            Markup(part.html),  # noqa: S704 - the template engine has written it
        )

    template = find_environment().get_template(content.template)
    return template.render({**content.facts, **around, "title": content.title, "part": render_part})


class DrawnPages:
    """The parts of the pages of one feed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._drawn: dict[str, tuple[int, float, tuple[PagePart, ...]]] = {}

    def draw(self, key: str, version: int, build: Callable[[], PageContent]) -> tuple[PagePart, ...]:
        """Return the parts of a page as they are now; only one of its readers draws it.

        Args:
            key: its address.
            version: of what it shows.
            build: returns the page.
        """
        with self._lock:
            if len(self._locks) > KEPT:
                self._locks.clear()
                self._drawn.clear()
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            now_s = time.monotonic()
            known = self._drawn.get(key)
            if known is not None and known[0] == version and now_s - known[1] < FRESH_S:
                return known[2]
            parts = render_parts(build())
            self._drawn[key] = (version, now_s, parts)
            return parts
