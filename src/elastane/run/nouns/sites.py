"""Sites: places with data of their own, between which only differences and results travel.

A machine belongs to one site or to several, by ``elastane join --site``. In a run with bound data each
virtual rank belongs to one site, and only workers of that site compute it.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.nouns.membership import MOST_SITES, SITE_NAME, Member, SiteName
from elastane.run.nouns.rundir import RunDir

AbsentRule: TypeAlias = Literal["wait", "skip"]
"""What a round does without a site: it waits for the site, or leaves the site's virtual ranks out."""

LARGEST_FILE_BYTES = 8192
_decode: Decoder[tuple[SiteName, ...]] = Decoder(tuple[SiteName, ...], at_most_bytes=LARGEST_FILE_BYTES)


def parse_sites(text: str) -> tuple[SiteName, ...]:
    """Return the sites of a machine from a list such as ``eu-1,us-1``.

    Raises:
        BadInput: a name cannot be that of a site.
    """
    names = tuple(name.strip() for name in text.split(","))
    wrong = [name for name in names if not re.fullmatch(SITE_NAME, name)]
    if wrong or len(set(names)) < len(names) or len(names) > MOST_SITES:
        raise BadInput(
            f"invalid site: {escape_line(text)!r}",
            means="a site has a name of at most 63 small letters, digits, dots and dashes, and a machine at "
            f"most {MOST_SITES} sites",
            do="--site NAME, such as eu-1; for a machine that may read the data of several sites, eu-1,us-1",
        )
    return names


def publish_sites(run_dir: RunDir, sites: tuple[SiteName, ...]) -> None:
    """Write the sites of this machine for its workers."""
    replace_file(run_dir.node_files.sites, msgspec.json.encode(sites), durable=False)


def read_sites(run_dir: RunDir) -> tuple[SiteName, ...]:
    """Return the sites of this machine; none if its agent has named none.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        return _decode(run_dir.files.read(run_dir.node_files.sites, LARGEST_FILE_BYTES))
    except (FileNotFoundError, Malformed):
        return ()


# -- the virtual ranks of sites ------------------------------------------------------------------------------


def deal_ranks_to_sites(sites: Sequence[SiteName], virtual_ranks: int) -> tuple[SiteName, ...]:
    """Return the site of each virtual rank: as many neighbouring ones for each site, in the order of names.

    Args:
        sites: the sites with data; their number divides ``virtual_ranks``.
    """
    ordered = sorted(sites)
    return tuple(ordered[rank * len(ordered) // virtual_ranks] for rank in range(virtual_ranks))


def list_site_ranks(rank_sites: Sequence[SiteName], sites: Collection[SiteName]) -> frozenset[int]:
    """Return the virtual ranks of some sites."""
    return frozenset(rank for rank, site in enumerate(rank_sites) if site in sites)


def find_missing_sites(rank_sites: Sequence[SiteName], members: Iterable[Member]) -> tuple[SiteName, ...]:
    """Return the sites with virtual ranks that no member may compute, in the order of names."""
    present = {site for member in members for site in member.sites}
    return tuple(sorted(set(rank_sites) - present))


def find_absent_sites(
    rank_sites: Sequence[SiteName], rule: AbsentRule, members: Iterable[Member]
) -> tuple[SiteName, ...]:
    """Return the sites that the rounds of a generation leave out.

    If all sites are missing, the rounds wait: a round without any samples would change nothing.
    """
    missing = find_missing_sites(rank_sites, members)
    return missing if rule == "skip" and len(missing) < len(set(rank_sites)) else ()
