"""The experiment trackers that a run can feed, by name, and the packages that they need."""

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Literal, TypeAlias, get_args

from elastane.common.errors import BadInput
from elastane.common.extras import require_module

Tracker: TypeAlias = Literal["tensorboard", "mlflow", "wandb"]
TRACKERS: tuple[Tracker, ...] = get_args(Tracker)
NO_TRACKER = "none"
PACKAGES: dict[Tracker, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
    "wandb": ("wandb",),
}
SQLITE_PACKAGES = ("sqlalchemy", "alembic")
"""What `mlflow` needs for its store in the run directory, but not for a server."""


def parse_trackers(named: str | Iterable[str], option: str) -> tuple[Tracker, ...]:
    """Return the trackers of a text such as ``tensorboard,mlflow``, each once; ``none`` gives none.

    Args:
        named: the text, or the names one by one.
        option: how the user has given them, for the error.

    Raises:
        BadInput: a name is unknown; the error offers the nearest one.
    """
    listed = named.split(",") if isinstance(named, str) else map(str, named)
    words = [word for text in listed if (word := text.strip())]
    if words == [NO_TRACKER]:
        return ()
    if not words:
        raise BadInput(f"{option} names no tracker", do=f"write {_list_trackers()}, or {NO_TRACKER}")
    for word in words:
        if word not in TRACKERS:
            near = get_close_matches(word.lower(), TRACKERS, n=1)
            hint = f"write {near[0]}" if near else f"write {_list_trackers()}, separated by commas"
            raise BadInput(f"{option}: {word!r} is not a tracker", do=hint)
    return tuple(name for name in TRACKERS if name in words)


def require_trackers(
    names: Iterable[Tracker], option: str, environment: Mapping[str, str] = os.environ
) -> None:
    """Check that the packages of these trackers are installed, without importing them.

    Raises:
        MissingExtra: a package is not installed.
        BadInput: the environment switches a tracker off.
    """
    for name in names:
        modules = PACKAGES[name]
        if name == "mlflow" and not environment.get("MLFLOW_TRACKING_URI"):
            modules = (*modules, *SQLITE_PACKAGES)
        for module in modules:
            require_module("trackers", module, f"{option} {name} needs {module}")
        if name == "wandb" and environment.get("WANDB_MODE") == "disabled":
            raise BadInput(
                f"{option} {name}: WANDB_MODE is disabled",
                means="wandb would drop every metric of the run",
                do="unset WANDB_MODE, or set it to offline or online",
            )


def _list_trackers() -> str:
    return f"{', '.join(TRACKERS[:-1])} or {TRACKERS[-1]}"
