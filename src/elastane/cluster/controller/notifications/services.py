"""The services that a URL of apprise may name, and the rights to add them. It is loaded in the sender only.

apprise knows some hundred services. Some act on this machine, and these are refused. Some connect to a host
that the URL names, from the network of the controller: only operators may add these. A team's admin may add
the services in `HOSTED`, which have hosts of their own.
"""

import logging
import re
from typing import TYPE_CHECKING

import msgspec

from elastane.common.errors import BadField
from elastane.common.extras import require_for_import

if TYPE_CHECKING:
    from apprise import NotifyBase

HOSTED: dict[str, str] = {
    "discord": "",
    "gchat": "",
    "opsgenie": "",
    "pagerduty": "",
    "pover": "",
    "slack": "",
    "tgram": "",
    "webex": "",
    "workflow": ".logic.azure.com",
    "workflows": ".logic.azure.com",
    "wxteams": "",
}
"""Services with hosts of their own; for some, the URL names a host with this end. Each was read: nothing in
its URL before the ``?`` leads elsewhere. What stands after it may, or names a file to read."""
ON_THIS_MACHINE = frozenset(
    {"blink1", "dbus", "glib", "gio", "gnome", "kde", "macosx", "osascript", "qt", "syslog", "windows"}
)
SHOW_HOST = frozenset(
    f"{scheme}{end}"
    for scheme in ("apprise", "form", "gotify", "json", "mailto", "mmost", "rocket", "workflow", "xml")
    for end in ("", "s")
)
"""Services with a host that lists show. In other URLs, its place may have a part of the secret."""
LONGEST_URL = 2000
HOST = re.compile(r"[A-Za-z0-9.-]*", re.ASCII)


class Service(msgspec.Struct, frozen=True):
    """What a URL names, without its secrets.

    Args:
        name: the scheme: ``slack``.
        host: empty: the URL names none, or it may be a part of the secret.
        is_hosted: it leads to the service's own hosts, so that a team's admin may add it.
    """

    name: str
    host: str
    is_hosted: bool


def read_service(url: str) -> Service:
    """Return what a URL names. No error and no log has a part of it besides its scheme.

    Raises:
        BadField: it is not the URL of a service that messages can be sent to.
        MissingExtra: apprise is not installed.
    """
    scheme = url.partition("://")[0].lower()
    shown = scheme if re.fullmatch("[a-z0-9]{1,19}", scheme) else ""
    if len(url) > LONGEST_URL or not url.isprintable():
        raise BadField(
            "url", f"has more than {LONGEST_URL} characters, or ones that cannot be printed", do="shorten it"
        )
    service = open_service(url)
    if service is None:
        raise BadField(
            "url",
            "is not a URL of apprise" + (f": it does not accept this one of {shown}://" if shown else ""),
            means="nothing was added",
            do="write for example slack://... or mailtos://..., and jsons:// for a webhook at https://",
        )
    schemes = {scheme, *_list_schemes(service)}
    name = scheme if scheme in _list_schemes(service) else min(_list_schemes(service), default=scheme)
    if schemes & ON_THIS_MACHINE or not _list_schemes(service):
        raise BadField(
            "url",
            f"{name}:// acts on the machine of the controller",
            means="nothing was added; only services that are reached over a network can be targets",
            do="name another service",
        )
    host = str(getattr(service, "host", "") or "")
    end = HOSTED.get(name)
    is_name = HOST.fullmatch(host) is not None
    is_hosted = end is not None and "?" not in url and (not end or (is_name and host.endswith(end)))
    return Service(name, host[:100] if is_name and name in SHOW_HOST else "", is_hosted)


def open_service(url: str) -> "NotifyBase | None":
    """Return apprise's object for a URL; None: apprise does not know such a URL.

    Raises:
        MissingExtra: apprise is not installed.
    """
    with require_for_import("notify", "notifications are sent by apprise"):
        import apprise
        from apprise import AppriseAsset, PersistentStoreMode
    # Its lines have parts of URLs, and some of the answers of services.
    logging.getLogger(apprise.__name__).setLevel(logging.CRITICAL + 1)
    logging.disable(logging.CRITICAL)
    asset = AppriseAsset(
        app_id="Elastane",
        app_desc="Elastane",
        app_url="",
        async_mode=False,
        # A service that is reached must not lead to another host.
        http_redirects=False,
        # A URL must not name a file of this machine.
        allow_templates=False,
        pgp_autogen=False,
        pem_autogen=False,
        plugin_paths=[],
        storage_mode=PersistentStoreMode.MEMORY,
    )
    # Some plug-ins fail by an error of their own for URLs that are not theirs.
    try:
        found = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
    except Exception:  # noqa: BLE001 - its text may have parts of the URL
        return None
    return found if isinstance(found, apprise.NotifyBase) else None


def _list_schemes(service: "NotifyBase") -> tuple[str, ...]:
    """Return the schemes of a service that are reached over a network."""
    found: list[str] = []
    for schemes in (service.protocol, service.secure_protocol):
        found += (schemes,) if isinstance(schemes, str) else tuple(schemes or ())
    return tuple(map(str, found))
