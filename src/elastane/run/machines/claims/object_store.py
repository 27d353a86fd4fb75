"""A claim list in an object store with conditional creates (``If-None-Match: *``): S3 and its like."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from fsspec import AbstractFileSystem, url_to_fs

from elastane.common.errors import BadInput
from elastane.run.machines.claims.place import ClaimsUnavailable, ClaimsUnusable, Content
from elastane.run.machines.claims.records import LARGEST_RECORD_BYTES, Unreadable

REQUEST_S = 3
"""The time limit of one request: the client library then repeats it, while the claim still has some time."""
CALL_S = 4
"""The time limit of one call of the client library, which does not apply the limit of requests everywhere."""


def open_object_store(url: str) -> "ObjectStorePlace":
    """Return the place at a URL of S3, without a request to it.

    Raises:
        BadInput: the file system of this URL is not installed.
    """
    try:
        # No caches: a claimant must see the objects of the others.
        limits = {"connect_timeout": REQUEST_S, "read_timeout": REQUEST_S}
        filesystem, root = url_to_fs(url, use_listings_cache=False, config_kwargs=limits)
    except (ImportError, ValueError) as error:
        raise BadInput(f"no file system for {url}: {error}", do="pip install 'elastane[s3]'") from error
    return ObjectStorePlace(filesystem, root, url)


class ObjectStorePlace:
    """Keeps each slot in an object of its number, below a root.

    The first claim proves with two creates of one name that the store refuses the second.

    Args:
        filesystem: of fsspec; its ``pipe_file`` creates atomically with ``mode="create"``, as in s3fs.
    """

    def __init__(self, filesystem: AbstractFileSystem, root: str, url: str) -> None:
        self._fs, self._root, self.where = filesystem, root.rstrip("/"), url.rstrip("/")
        self._proven = False

    def create(self, slot: int, content: bytes) -> bool:
        with _translate_errors("write", self.where):
            if not self._proven:
                self._prove_conditional_create()
            return self._create(str(slot), content)

    def prove_writable(self) -> None:
        with _translate_errors("write", self.where):
            self._prove_conditional_create()

    def _create(self, name: str, content: bytes) -> bool:
        try:
            self._fs.pipe_file(f"{self._root}/{name}", content, mode="create", timeout=CALL_S)
        except FileExistsError:
            return False
        return True

    def _prove_conditional_create(self) -> None:
        """Create an object twice.

        Raises:
            ClaimsUnusable: the second create has replaced the first, or the store refuses conditions.
        """
        name = f"probe-{secrets.token_hex(8)}"
        try:
            self._create(name, b"{}")
            replaced = self._create(name, b"{}")
        except (OSError, NotImplementedError) as error:
            if "NotImplemented" not in f"{type(error).__name__} {error}" and "not implemented" not in str(
                error
            ):
                raise
            replaced = True
        with suppress(Exception):
            self._fs.rm_file(f"{self._root}/{name}")
        if replaced:
            raise ClaimsUnusable(
                f"the object store at {self.where} does not honour conditional creates (If-None-Match: *)",
                means="two claimants could both get a slot, so nothing was claimed",
                do="keep the claim list in a store that does, or in a directory of a shared file system; an "
                "old botocore drops the condition: pip install --upgrade botocore",
            )
        self._proven = True

    def read(self, first_slot: int) -> tuple[Content, ...]:
        with _translate_errors("read", self.where):
            sizes = self._list_slots()
            slots = []
            for slot in count(first_slot):
                if slot not in sizes:
                    break
                slots.append(slot)
            small = [f"{self._root}/{slot}" for slot in slots if sizes[slot] <= LARGEST_RECORD_BYTES]
            found = self._fetch(small)
        too_large = Unreadable(f"it has more than {LARGEST_RECORD_BYTES} bytes")
        return tuple(found.get(f"{self._root}/{slot}", too_large) for slot in slots)

    def _list_slots(self) -> dict[int, int]:
        """Return the size in bytes of each slot's object."""
        self._fs.invalidate_cache(self._root)
        try:
            listed: list[dict[str, Any]] = self._fs.ls(self._root, detail=True, timeout=CALL_S)
        except FileNotFoundError as error:
            if "bucket does not exist" in str(error):
                raise
            return {}
        entries = {entry["name"].rpartition("/")[2]: entry for entry in listed if entry["type"] == "file"}
        return {int(name): int(entry["size"]) for name, entry in entries.items() if _is_slot(name)}

    def _fetch(self, paths: list[str]) -> dict[str, bytes]:
        if not paths:
            return {}
        # A list of one path is answered without its name by some versions of fsspec.
        if len(paths) == 1:
            return {paths[0]: bytes(self._fs.cat_file(paths[0], timeout=CALL_S))}
        return {path: bytes(content) for path, content in self._fs.cat(paths, timeout=CALL_S).items()}


def _is_slot(name: str) -> bool:
    return name.isascii() and name.isdigit() and not name.startswith("0") and len(name) < 12  # noqa: PLR2004


@contextmanager
def _translate_errors(action: str, where: str) -> Iterator[None]:
    """Translate the errors of a client library.

    Raises:
        ClaimsUnavailable: trying again may help.
        ClaimsUnusable: it cannot help.
    """
    try:
        yield
    except (ClaimsUnavailable, ClaimsUnusable):
        raise
    except PermissionError as error:
        raise ClaimsUnusable(
            f"cannot {action} the claim list {where}: permission denied ({error})",
            means="nothing was claimed",
            do="let these credentials list, read and write objects there",
        ) from error
    except FileNotFoundError as error:
        raise ClaimsUnusable(
            f"cannot {action} the claim list {where}: {error}",
            means="nothing was claimed",
            do="create the bucket, or correct the URL",
        ) from error
    # fsspec raises every exception of its client libraries: botocore, aiohttp.
    except Exception as error:
        raise ClaimsUnavailable(
            f"cannot {action} the claim list {where}: {type(error).__name__}: {error}"
        ) from error
