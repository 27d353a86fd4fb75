"""Claim lists by path or URL."""

import hashlib
from pathlib import Path

from elastane.common.errors import BadInput
from elastane.common.url_credentials import check_no_credentials
from elastane.run.connections.endpoint import read_secret
from elastane.run.machines.claims.claim_list import WAIT_S, ClaimList
from elastane.run.machines.claims.directory import DirectoryPlace
from elastane.run.machines.claims.place import ClaimsUnusable
from elastane.run.nouns.rundir import CLAIMS, RunDir
from elastane.run.nouns.spec import RunSpec

CONTROLLER_SCHEMES = ("http", "https")


LONGEST_NAME = 87
"""Characters of a run's name in that of its list, which has at most 100 in a controller."""


def find_claims(run_dir: RunDir, spec: RunSpec) -> str:
    """Return the path or URL of a run's claim list.

    Lists of several runs at one URL have names that differ, also for runs of one name.

    Raises:
        Malformed, OSError: the secret of the run, which the name depends on, cannot be read.
    """
    if not spec.claims:
        return str(run_dir.root / CLAIMS)
    mark = hashlib.sha256(read_secret(run_dir).encode()).hexdigest()[:12]
    return f"{spec.claims.rstrip('/')}/{spec.name[:LONGEST_NAME]}-{mark}"


def open_claims(run_dir: RunDir, spec: RunSpec, *, wait_s: float = WAIT_S) -> ClaimList:
    """Return the claim list of a run, without reading, writing or creating anything in it.

    Raises:
        Malformed, OSError: see `find_claims`.
        BadInput: see `open_claim_list`.
    """
    if not spec.claims and run_dir.is_private:
        from elastane.run.connections.record_store import find_record_store
        from elastane.run.machines.claims.controller_store import open_agent_list

        store = find_record_store(run_dir)
        assert store is not None, "no process removes the file"
        return ClaimList(open_agent_list(store), wait_s=wait_s)
    return open_claim_list(find_claims(run_dir, spec), wait_s=wait_s)


def prepare_claims(url: str) -> None:
    """Make the directory of a new claim list, and prove that claims can be made, before one is needed.

    Raises:
        BadInput: the directory cannot be made.
        ClaimsUnavailable, ClaimsUnusable: the place does not answer, or cannot keep a claim list.
    """
    if "://" not in url:
        try:
            Path(url).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"cannot make the directory of the claim list {url}: {error.strerror}",
                means="coordinators of the run claim their terms there",
                do="--claims URL, with a directory that all machines of the run can write",
            ) from error
    open_claim_list(url).prove_writable()


def open_claim_list(url: str, *, wait_s: float = WAIT_S) -> ClaimList:
    """Return the claim list at a path or URL, without reading, writing or creating anything.

    Args:
        url: path of a directory, ``s3://BUCKET/PATH``, or ``https://CONTROLLER/TEAM/NAME``.

    Raises:
        ClaimsUnusable: this kind of URL cannot keep a claim list.
        BadInput: the URL has credentials, or the library for it is not installed.
    """
    check_no_credentials(url, "the URL of the claim list")
    scheme, separator, path = url.partition("://")
    if not separator or scheme in ("file", "local"):
        return ClaimList(DirectoryPlace(path if separator else url), wait_s=wait_s)
    if scheme in CONTROLLER_SCHEMES:
        from elastane.run.machines.claims.controller_store import open_team_list

        return ClaimList(open_team_list(url), wait_s=wait_s)
    # fsspec has more file systems, but most of them check and write in two steps.
    if scheme not in ("s3", "s3a"):
        raise ClaimsUnusable(
            f"a claim list cannot be kept at {scheme}:// URLs",
            means="no atomic way is known there to create a file only if it is missing",
            do="name a directory of a shared file system, s3://BUCKET/PATH, or the https:// address of a "
            "controller",
        )
    try:
        from elastane.run.machines.claims.object_store import open_object_store
    except ImportError as error:
        raise BadInput(f"no file system for {url}: {error}", do="pip install 'elastane[s3]'") from error
    return ClaimList(open_object_store(url), wait_s=wait_s)
