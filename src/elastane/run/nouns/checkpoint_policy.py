"""Parsing of a user's settings for checkpoints into a `CheckpointPolicy`."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, cast

import msgspec

from elastane.common.durations import parse_duration_s
from elastane.common.field_checks import check_minimum, make_field_error
from elastane.common.url_credentials import check_no_credentials
from elastane.run.nouns.spec import CheckpointPolicy

STEPS = re.compile(r"(\d+)\s*steps?", re.ASCII)
BEST = re.compile(r"(.+):(min|max)")
FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "url": "training.checkpoints.url",
        "every": "training.checkpoints.every",
        "keep_last": "training.checkpoints.keepLast",
        "keep_every": "training.checkpoints.keepEvery",
        "keep_best": "training.checkpoints.keepBest",
    }
)


class CheckpointSettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    forbid_unknown_fields=True,
    omit_defaults=True,
    gc=False,
):
    """When and where to save checkpoints, and which to keep, as users write it.

    Args:
        every: ``auto``, ``never``, or an interval: ``10 min``, ``500 steps``.
        at: also after each of these.
        url: a directory or any URL that fsspec knows; empty: in the run directory.
        keep_last: number of the newest checkpoints to keep.
        keep_every: also keep those of every this many steps.
        keep_best: also keep the best by a metric, such as ``eval_loss:min``; empty: no metric.
    """

    every: str = "auto"
    at: tuple[Literal["epoch", "evaluation"], ...] = ()
    url: str = ""
    keep_last: int = 2
    keep_every: int | None = None
    keep_best: str = ""


def parse_checkpoint_policy(
    settings: CheckpointSettings, names: Mapping[str, str] = FIELDS
) -> CheckpointPolicy | None:
    """Return the requested policy; None: no checkpoints.

    ``never`` together with ``at`` or ``url`` means: only at those moments, at the end, and on `elastane
    checkpoint now`.

    Args:
        names: the name of each setting, for errors.

    Raises:
        BadField: a field has a wrong value.
    """
    if settings.every == "never" and not (settings.at or settings.url):
        return None
    check_no_credentials(settings.url, names.get("url", "the URL of the checkpoints"))
    check_minimum(names["keep_last"], settings.keep_last, 1)
    check_minimum(names["keep_every"], settings.keep_every, 1)
    every_s, every_steps = _parse_interval(names["every"], settings.every)
    return CheckpointPolicy(
        url=settings.url,
        every_s=every_s,
        every_steps=every_steps,
        auto=settings.every == "auto",
        each_epoch="epoch" in settings.at,
        each_evaluation="evaluation" in settings.at,
        keep_last=settings.keep_last,
        keep_every=settings.keep_every,
        keep_best=_parse_best(names["keep_best"], settings.keep_best),
    )


def describe_policy(policy: CheckpointPolicy | None) -> CheckpointSettings:
    """Return the settings from which `parse_checkpoint_policy` parses this policy."""
    if policy is None:
        return CheckpointSettings(every="never")
    at = (("epoch", policy.each_epoch), ("evaluation", policy.each_evaluation))
    return CheckpointSettings(
        every=_format_interval(policy),
        at=tuple(cast(Literal["epoch", "evaluation"], name) for name, wanted in at if wanted),
        url=policy.url,
        keep_last=policy.keep_last,
        keep_every=policy.keep_every,
        keep_best=":".join(policy.keep_best or ()),
    )


def _format_interval(policy: CheckpointPolicy) -> str:
    if policy.every_steps is not None:
        return f"{policy.every_steps} steps"
    if policy.every_s is not None:
        return f"{policy.every_s:.9f} s"
    return "auto" if policy.auto else "never"


def _parse_interval(name: str, text: str) -> tuple[float | None, int | None]:
    """Return the seconds and the steps between two checkpoints; at most one of them is given."""
    if text in ("auto", "never"):
        return None, None
    steps = STEPS.fullmatch(text.strip())
    try:
        number = int(steps[1]) if steps else parse_duration_s(text)
    except (ValueError, OverflowError):
        number = 0
    if number <= 0:
        raise make_field_error(
            name,
            f"{text!r} is neither a duration nor a number of steps",
            'write auto, never, or for example 10min or "500 steps"',
        )
    return (None, int(number)) if steps else (float(number), None)


def _parse_best(name: str, text: str) -> tuple[str, Literal["min", "max"]] | None:
    if not text:
        return None
    match = BEST.fullmatch(text)
    if match is None:
        raise make_field_error(name, f"{text!r} is not METRIC:min or METRIC:max", "write eval_loss:min")
    return match[1], cast(Literal["min", "max"], match[2])
