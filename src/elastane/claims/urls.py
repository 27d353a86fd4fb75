"""Claim lists by path or URL."""

from elastane.api.errors import BadInput
from elastane.claims.claim_list import WAIT_S, ClaimList
from elastane.claims.directory import DirectoryPlace
from elastane.claims.place import ClaimsUnusable


def open_claim_list(url: str, *, wait_s: float = WAIT_S) -> ClaimList:
    """Return the claim list at a path or URL, without reading, writing or creating anything.

    Args:
        url: path of a directory, or ``s3://BUCKET/PATH``.
        wait_s: see `ClaimList`.

    Raises:
        ClaimsUnusable: this kind of URL cannot keep a claim list.
        BadInput: the library for this URL is not installed.
    """
    scheme, separator, path = url.partition("://")
    if not separator or scheme in ("file", "local"):
        return ClaimList(DirectoryPlace(path if separator else url), wait_s=wait_s)
    # fsspec has more file systems, but most of them check and write in two steps.
    if scheme not in ("s3", "s3a"):
        raise ClaimsUnusable(
            f"a claim list cannot be kept at {scheme}:// URLs",
            means="no atomic way is known there to create a file only if it is missing",
            do="name a directory of a shared file system, or s3://BUCKET/PATH",
        )
    try:
        from elastane.claims.object_store import open_object_store
    except ImportError as error:
        raise BadInput(f"no file system for {url}: {error}", do="pip install 'elastane[s3]'") from error
    return ClaimList(open_object_store(url), wait_s=wait_s)
