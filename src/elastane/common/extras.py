"""Optional packages, and the error that names the extra to install when one is missing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Literal, TypeAlias, get_args

from elastane.common.errors import BadInput

Extra: TypeAlias = Literal[
    "torch",
    "rooms",
    "nixl",
    "s3",
    "text",
    "streams",
    "client",
    "controller",
    "dashboard",
    "postgres",
    "recipes",
    "trl",
    "lightning",
    "trackers",
    "nodes",
    "notify",
    "metrics",
    "traces",
    "privacy",
]

MODULES: dict[Extra, tuple[str, ...]] = {
    "torch": ("torch", "numpy", "safetensors"),
    "rooms": ("cuda",),
    "nixl": ("nixl",),
    "s3": ("s3fs",),
    "text": ("pyarrow", "tokenizers"),
    "streams": ("torchdata",),
    "client": ("httpx", "ruamel"),
    "controller": ("alembic", "fastapi", "fastapi_offline", "h11", "sqlalchemy", "uvicorn"),
    "dashboard": ("jinja2", "starlette"),
    "postgres": ("psycopg",),
    "recipes": ("accelerate", "peft", "transformers"),
    "trl": ("trl",),
    "lightning": ("lightning",),
    "trackers": ("mlflow", "tensorboard", "wandb"),
    "nodes": ("cryptography",),
    "notify": ("apprise",),
    "metrics": ("prometheus_client",),
    "traces": ("opentelemetry",),
    "privacy": ("opacus",),
}
"""The modules of each extra of pyproject.toml. A module of two extras is listed under the smaller one."""
assert tuple(MODULES) == get_args(Extra)


class MissingExtra(BadInput, ImportError):
    """An optional package is needed and cannot be imported.

    Args:
        what: the feature that needs the package; begins the sentence.
    """

    def __init__(self, extra: Extra, what: str, why: str) -> None:
        super().__init__(
            f"{what}: {why}",
            means="elastane is installed without an optional part that this needs",
            do=f"pip install 'elastane[{extra}]'",
        )


def require(extra: Extra, what: str) -> None:
    """Check that all modules of an extra are installed, without importing them.

    Args:
        extra: of pyproject.toml.
        what: the feature that needs it; begins the sentence.

    Raises:
        MissingExtra: a package is not installed.
    """
    missing = [name for name in MODULES[extra] if not _is_installed(name)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtra(extra, what, f"{', '.join(missing)} {verb} not installed")


def require_module(extra: Extra, module: str, what: str) -> None:
    """Check that one module of an extra is installed, without importing it."""
    if not _is_installed(module):
        raise MissingExtra(extra, what, "it is not installed")


@contextmanager
def require_for_import(extra: Extra, what: str) -> Iterator[None]:
    """Raise an error that names the extra to install if an import in this context fails.

    Args:
        extra: the extra with the module, unless another extra contains it.
        what: the feature that needs it; begins the sentence.

    Raises:
        MissingExtra: a module outside Elastane cannot be imported.
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
    """Return the extra that contains a module; None: no extra does."""
    return next((extra for extra, modules in MODULES.items() if module in modules), None)


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    return find_spec(module) is not None
