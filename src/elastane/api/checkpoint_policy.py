"""From how people say when they want checkpoints to a `CheckpointPolicy`, or an error."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, cast

from elastane.api.jobs import Checkpoints
from elastane.api.reading import at_least, invalid
from elastane.api.spec import CheckpointPolicy

INTERVAL = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|seconds?|min|minutes?|h|hours?|steps?)")
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
BEST = re.compile(r"(.+):(min|max)")
FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "every": "training.checkpoints.every",
        "keep_last": "training.checkpoints.keepLast",
        "keep_every": "training.checkpoints.keepEvery",
        "keep_best": "training.checkpoints.keepBest",
    }
)


def policy_of(wishes: Checkpoints, named: Mapping[str, str] = FIELDS) -> CheckpointPolicy | None:
    """What is wished for; None: no checkpoints.

    ``never`` beside moments or a place: only at those, at the end, and when `elastane checkpoint now` asks.

    Args:
        wishes: as written.
        named: what whoever wrote them calls each one.

    Raises:
        BadField: with the field, what is wrong and what to write.
    """
    if wishes.every == "never" and not (wishes.at or wishes.url):
        return None
    at_least(named["keep_last"], wishes.keep_last, 1)
    at_least(named["keep_every"], wishes.keep_every, 1)
    every_s, every_steps = _interval(named["every"], wishes.every)
    return CheckpointPolicy(
        url=wishes.url,
        every_s=every_s,
        every_steps=every_steps,
        auto=wishes.every == "auto",
        each_epoch="epoch" in wishes.at,
        each_evaluation="evaluation" in wishes.at,
        keep_last=wishes.keep_last,
        keep_every=wishes.keep_every,
        keep_best=_best(named["keep_best"], wishes.keep_best),
    )


def _interval(name: str, text: str) -> tuple[float | None, int | None]:
    if text in ("auto", "never"):
        return None, None
    match = INTERVAL.fullmatch(text.strip())
    number = float(match[1]) if match else 0.0
    steps = match is not None and match[2].startswith("step")
    if match is None or number <= 0 or (steps and number != int(number)):
        raise invalid(
            name, f"{text!r} is not understood", 'write auto, never, or for example "10 min" or "500 steps"'
        )
    if steps:
        return None, int(number)
    return number * SECONDS[match[2][0]], None


def _best(name: str, text: str) -> tuple[str, Literal["min", "max"]] | None:
    if not text:
        return None
    match = BEST.fullmatch(text)
    if match is None:
        raise invalid(name, f"{text!r} is not METRIC:min or METRIC:max", "write eval_loss:min")
    return match[1], cast(Literal["min", "max"], match[2])
