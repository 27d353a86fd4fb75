"""Which packages are optional, and the one error that names the extra to install when one is missing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal, TypeAlias, get_args

from elastane.api.errors import BadInput

Extra: TypeAlias = Literal["torch", "s3", "text", "streams", "client", "controller", "postgres"]

MODULES: dict[Extra, tuple[str, ...]] = {
    "torch": ("torch", "numpy", "safetensors"),
    "s3": ("s3fs",),
    "text": ("pyarrow", "tokenizers"),
    "streams": ("torchdata",),
    "client": ("httpx", "ruamel"),
    "controller": ("alembic", "fastapi", "h11", "sqlalchemy", "uvicorn"),
    "postgres": ("psycopg",),
}
"""What each extra of pyproject.toml brings. A module of two extras is under the smaller one."""
assert tuple(MODULES) == get_args(Extra)  # noqa: S101 - one list, read by types and by people


class MissingExtra(BadInput, ImportError):
    """A package that is optional is needed, and cannot be imported.

    Args:
        extra: to install.
        what: needs the package; begins the sentence.
        why: the reason that it cannot be imported.
    """

    def __init__(self, extra: Extra, what: str, why: str) -> None:
        super().__init__(
            f"{what}: {why}",
            means="elastane is installed without an optional part that this needs",
            do=f"pip install 'elastane[{extra}]'",
        )


def require(extra: Extra, what: str) -> None:
    """Check that everything of an extra is installed, without importing any of it.

    Args:
        extra: of pyproject.toml.
        what: needs it, for people; begins the sentence.

    Raises:
        MissingExtra: a package is not installed.
    """
    missing = [name for name in MODULES[extra] if not _is_installed(name)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtra(extra, what, f"{', '.join(missing)} {verb} not installed")


@contextmanager
def require_for_import(extra: Extra, what: str) -> Iterator[None]:
    """Name the extra to install if something that is imported in this context is missing.

    Args:
        extra: that brings it, unless the missing module is one of another extra.
        what: needs it, for people; begins the sentence.

    Raises:
        MissingExtra: an import failed outside Elastane itself.
    """
    try:
        yield
    except MissingExtra:
        raise
    except ImportError as error:
        module = (error.name or "").partition(".")[0]
        if module == "elastane":
            raise
        raise MissingExtra(find_extra(module) or extra, what, str(error)) from error


def find_extra(module: str) -> Extra | None:
    """Return the extra that brings a module; None: it is in no extra."""
    return next((extra for extra, modules in MODULES.items() if module in modules), None)


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    return find_spec(module) is not None
