"""Checks of the named numbers that a script logs, passes to a checkpoint, or adds up."""

import math
import numbers
import os
from collections.abc import Mapping

import torch

from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line

LONGEST_NAME = 64
MOST_NAMES = 200
"""The limit of values per step; the ledger's line of the step has each of them."""
SHOWN = 40


def to_number(value: object) -> float | None:
    """Return a number or a tensor of one element in fp64; None: the value is something else."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1 or value.is_complex():
            return None
        return float(value.detach())
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except (OverflowError, ValueError):
            return math.inf
    return None


def compute_sum(value: object) -> float | None:
    """Return a number, or the sum of a tensor, in fp64; None: the value is something else."""
    if isinstance(value, torch.Tensor):
        return None if value.is_complex() else value.detach().double().sum().item()
    return to_number(value)


def describe_value(value: object) -> str:
    """Return a short description of a value that is safe to print."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None:
        return "None"
    if isinstance(value, bool | int | float | str | bytes | os.PathLike):
        content = os.fspath(value) if isinstance(value, os.PathLike) else value
        # Show only the beginning of a text, which may be a whole file.
        text = repr(content[:SHOWN] if isinstance(content, str | bytes) else content)
        return f"{escape_line(text, SHOWN)} ({type(value).__name__})"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def check_value_names(names: Mapping[str, object], function: str) -> None:
    """Refuse names that the ledger cannot carry.

    Args:
        function: the name of the function that the script called, for the message.

    Raises:
        BadInput: a name is not an identifier or is too long, or the names are too many.
    """
    if len(names) > MOST_NAMES:
        raise BadInput(
            f"{function} was given {len(names)} values; {MOST_NAMES} are allowed",
            means="the ledger has all values of a step in one line",
            do="pass fewer values, for example their mean; write tables with run.artifact",
        )
    for name in names:
        if not name.isidentifier() or len(name) > LONGEST_NAME:
            raise BadInput(
                f"{function}: {escape_line(name, SHOWN)!r} cannot be the name of a value",
                means=f"a name is a Python identifier of at most {LONGEST_NAME} characters",
                do="use letters, digits and underscores, such as val_loss instead of val/loss",
            )


def parse_values(values: Mapping[str, object], function: str) -> dict[str, float]:
    """Return the values as numbers, which may be infinite or NaN: a perplexity may overflow.

    Args:
        function: the name of the function that the script called, for the message.

    Raises:
        BadInput: a name or a value cannot be recorded.
    """
    check_value_names(values, function)
    parsed: dict[str, float] = {}
    for name, value in values.items():
        number = to_number(value)
        if number is None:
            raise BadInput(
                f"{function}({name}=...) was given {describe_value(value)}",
                means="the run records numbers and tensors of one element only",
                do=f"reduce it first, such as {name}=values.mean(); write other data with run.artifact",
            )
        parsed[name] = number
    return parsed
