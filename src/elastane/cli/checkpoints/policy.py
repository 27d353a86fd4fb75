"""From the options about checkpoints to a `CheckpointPolicy`, or a sentence that says why not."""

import re
from typing import Literal, cast

import msgspec

from elastane.api.errors import BadInput
from elastane.api.spec import CheckpointPolicy

INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|seconds?|min|minutes?|h|hours?|steps?)")
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
BEST = re.compile(r"(.+):(min|max)")


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

    ``never`` beside moments or a place: only at those, at the end, and when `elastane checkpoint now` asks.

    Raises:
        BadInput: with the option to change.
    """
    if options.every == "never" and not (options.at or options.url):
        return None
    if options.keep_last < 1 or (options.keep_every is not None and options.keep_every < 1):
        raise BadInput("--keep-last and --keep-every are at least 1", do="write 1 or more")
    at = {word.strip() for word in options.at.split(",") if word.strip()}
    if not at <= {"epoch", "evaluation"}:
        raise BadInput(
            f"--checkpoint-at {options.at!r} is not understood", do="write epoch, evaluation or both"
        )
    every_s, every_steps = _interval(options.every)
    return CheckpointPolicy(
        url=options.url,
        every_s=every_s,
        every_steps=every_steps,
        auto=options.every == "auto",
        each_epoch="epoch" in at,
        each_evaluation="evaluation" in at,
        keep_last=options.keep_last,
        keep_every=options.keep_every,
        keep_best=_best(options.keep_best),
    )


def _interval(text: str) -> tuple[float | None, int | None]:
    if text in ("auto", "never"):
        return None, None
    match = INTERVAL.fullmatch(text.strip())
    number = float(match[1]) if match else 0.0
    steps = match is not None and match[2].startswith("step")
    if match is None or number <= 0 or (steps and number != int(number)):
        raise BadInput(
            f"--checkpoint-every {text!r} is not understood",
            do='write auto, never, or for example "10 min" or "500 steps"',
        )
    if steps:
        return None, int(number)
    return number * SECONDS[match[2][0]], None


def _best(text: str | None) -> tuple[str, Literal["min", "max"]] | None:
    if text is None:
        return None
    match = BEST.fullmatch(text)
    if match is None:
        raise BadInput(f"--keep-best {text!r} is not METRIC:min or METRIC:max", do="write eval_loss:min")
    return match[1], cast(Literal["min", "max"], match[2])
