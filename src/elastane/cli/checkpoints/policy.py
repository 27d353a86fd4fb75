"""From the options about checkpoints to a `CheckpointPolicy`, or a sentence that says why not."""

from typing import Literal, cast

import msgspec

from elastane.api import checkpoint_policy
from elastane.api.errors import BadInput
from elastane.api.jobs import JobCheckpoints
from elastane.api.spec import CheckpointPolicy

OPTIONS = {
    "every": "--checkpoint-every",
    "keep_last": "--keep-last",
    "keep_every": "--keep-every",
    "keep_best": "--keep-best",
}


class CheckpointOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options as they were typed; see ``elastane run --help``."""

    every: str = "auto"
    at: str = ""
    url: str = ""
    keep_last: int = 2
    keep_every: int | None = None
    keep_best: str | None = None


def policy_of(options: CheckpointOptions) -> CheckpointPolicy | None:
    """Check what was typed; None: no checkpoints.

    Raises:
        BadInput: with the option to change.
    """
    wishes = JobCheckpoints(
        every=options.every,
        at=moments(options.at),
        url=options.url,
        keep_last=options.keep_last,
        keep_every=options.keep_every,
        keep_best=options.keep_best or "",
    )
    return checkpoint_policy.parse_checkpoint_policy(wishes, OPTIONS)


def moments(text: str) -> tuple[Literal["epoch", "evaluation"], ...]:
    """``epoch,evaluation`` as a list.

    Raises:
        BadInput: it names something else.
    """
    words = sorted({word.strip() for word in text.split(",") if word.strip()})
    if not set(words) <= {"epoch", "evaluation"}:
        raise BadInput(f"--checkpoint-at {text!r} is not understood", do="write epoch, evaluation or both")
    return cast(tuple[Literal["epoch", "evaluation"], ...], tuple(words))
