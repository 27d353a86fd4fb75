"""A pretrained model at the URL of a store, which each machine copies once into its cache."""

import hashlib
import shutil
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from elastane.common.atomic_file import open_new_directory
from elastane.common.errors import BadField, BadInput
from elastane.common.user_cache import find_cache, lock_for_one
from elastane.integrations.recipes.model_source import (
    CONFIG,
    DOWNLOADED,
    FIELD,
    NOT_DOWNLOADED,
    check_has_weights,
    read_model_config,
)
from elastane.run.checkpoints.storage.copies import copy_file
from elastane.run.checkpoints.storage.interface import Storage
from elastane.run.checkpoints.storage.local import LocalStorage
from elastane.run.checkpoints.storage.urls import open_storage
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.observability.model_files import is_plain_name


def fetch_model(url: str, digest: str) -> Path:
    """Return the folder of the cache that has the model at a URL; its name is the digest of the files.

    Args:
        digest: of the files that are meant; empty: those that are there now.

    Raises:
        BadField: there is no such model, or it has other files now.
        BadInput: the file system of the URL is not installed.
        StorageError: the store does not answer.
    """
    cache, storage = find_cache("models"), open_storage(url)
    fetched = _name_copy("fetched", url)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # All workers of a machine come here at the same time.
        with lock_for_one(fetched.with_suffix(".lock")):
            if not digest or not (cache / digest).is_dir():
                digest = _fetch(url, storage, digest, fetched)
    except OSError as error:
        raise BadInput(
            f"cannot copy the model at {url} to {cache}: {error.strerror or error}",
            means="each machine of the training needs it there",
            do="free some space, or set XDG_CACHE_HOME",
        ) from error
    return cache / digest


def fetch_model_config(url: str) -> Path:
    """Return a folder of the cache with the configuration of the model at a URL, without its weights."""
    folder, storage = _name_copy("config", url), open_storage(url)
    _check_names(storage, [*storage.list_files("")])
    copy_file(storage, CONFIG, LocalStorage(folder))
    read_model_config(folder, storage.url)
    return folder


def _name_copy(what: str, url: str) -> Path:
    return find_cache("models") / f"{what}-{hashlib.sha256(url.encode()).hexdigest()}"


def _fetch(url: str, storage: Storage, digest: str, fetched: Path) -> str:
    """Copy a model into a folder of the cache that the digest of its files names; return the digest."""
    shutil.rmtree(fetched, ignore_errors=True)
    with open_new_directory(fetched, durable=False) as partial:
        found = digest_files(_copy_files(storage, LocalStorage(partial), partial))
        if digest and found != digest:
            raise BadField(
                FIELD,
                f"{url} has other files than those with which this recipe was submitted",
                means="the training would begin with another model",
                do="bring the files back, or submit the recipe again",
            )
    try:
        fetched.rename(fetched.with_name(found))
    except OSError:
        # Another URL may have the same files.
        if not fetched.with_name(found).is_dir():
            raise
        shutil.rmtree(fetched)
    return found


def digest_files(files: dict[str, WrittenFile]) -> str:
    """Return a digest of the names and the content of files. It tells files apart, also of the same size."""
    lines = (f"{file.checksum} {file.bytes} {name}\n" for name, file in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _copy_files(storage: Storage, into: Storage, folder: Path) -> dict[str, WrittenFile]:
    names = _select_files(storage.list_files(""))
    _check_names(storage, names)
    # The weights may be large, so refuse those that cannot be trained first.
    copied = {CONFIG: copy_file(storage, CONFIG, into)}
    read_model_config(folder, storage.url)
    check_has_weights(names, storage.url)
    for name in names:
        if name != CONFIG:
            copied[name] = copy_file(storage, name, into)
    return copied


def _select_files(names: Iterable[str]) -> list[str]:
    """Return the files that a run needs; see `DOWNLOADED`."""
    return sorted(
        name
        for name in names
        if is_plain_name(name)
        and any(fnmatchcase(name, kind) for kind in DOWNLOADED)
        and not any(fnmatchcase(name, kind) for kind in NOT_DOWNLOADED)
    )


def _check_names(storage: Storage, names: list[str]) -> None:
    if CONFIG not in names:
        raise BadField(
            FIELD,
            f"{storage.url} has no {CONFIG}" if names else f"{storage.url} has no files",
            means="the architecture of the model is unknown",
            do="name the URL to which elastane export --format hf has written a model",
        )
