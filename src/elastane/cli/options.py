"""Command options as one frozen struct: the fields are the options, and their annotations hold the help."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import typer

S = TypeVar("S", bound=msgspec.Struct)

WORKERS = "Workers"
NAMES = "Name, team and priority"
LIMITS = "Deadline, budget and retries"
TRAINING = "Training (the trained bytes depend on these)"
CHECKPOINTS = "Checkpoints"
CONTRACT = "Unmodified scripts"
RESUME = "Resume a run, or begin from one"
OUTPUT = "Output"
AFTER = "After submission"
SLURM = "Slurm ('' removes an option)"
KUBERNETES = "Kubernetes ('' removes an option)"
PANELS = (
    "",
    NAMES,
    WORKERS,
    CONTRACT,
    LIMITS,
    TRAINING,
    CHECKPOINTS,
    RESUME,
    OUTPUT,
    AFTER,
    SLURM,
    KUBERNETES,
)
"""The order of the groups in a command's help."""


def option(metavar: str, help_: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option of a command with a value; ``names`` replace the one that its parameter has."""
    return typer.Option(*names, metavar=metavar, help=help_, rich_help_panel=panel, **more)


def flag(help_: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return an option of a command that has no value, or a value without a name in the help."""
    return typer.Option(*names, help=help_, rich_help_panel=panel, **more)


def argument(metavar: str, help_: str, **more: Any) -> Any:
    """Return an argument of a command."""
    return typer.Argument(metavar=metavar, help=help_, **more)


def expand_options(command: Callable[..., None], left_out: tuple[str, ...] = ()) -> Callable[..., None]:
    """Replace the parameter ``options`` of a command, a struct, by one parameter per field of the struct.

    Args:
        command: has a parameter ``options`` that is annotated with a frozen `msgspec.Struct`. Each field of
            the struct has a default and an annotation that Typer reads.
        left_out: names of fields that keep their defaults, without an option.
    """
    hints = get_type_hints(command, include_extras=True)
    kind = hints.pop("options")
    fields = get_type_hints(kind, include_extras=True)
    options = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=fields[field.name]
        )
        for field in msgspec.structs.fields(kind)
        if field.name not in left_out
    ]
    options.sort(key=lambda option: PANELS.index(_find_panel(option.annotation)))

    @functools.wraps(command)
    def call_with_struct(*args: Any, **kwargs: Any) -> None:
        values = {option.name: kwargs.pop(option.name) for option in options}
        command(*args, options=kind(**values), **kwargs)

    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        parameters += options if name == "options" else [parameter.replace(annotation=hints[name])]
    call_with_struct.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call_with_struct.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call_with_struct


def list_explicit_options(context: typer.Context, *, left_out: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the options that the user typed for a command, with their values, in the order of its help."""
    words: list[str] = []
    for parameter in context.command.params:
        if parameter.param_type_name != "option" or parameter.name is None:
            continue
        # A hidden option changes nothing.
        if getattr(parameter, "hidden", False):
            continue
        source = context.get_parameter_source(parameter.name)
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[parameter.name]
        long_form = max(parameter.opts, key=len)
        if parameter.name not in left_out:
            words += [long_form] if value is True else [long_form, f"{value}"]
    return tuple(words)


def spell_with_hyphens(word: str) -> str:
    """Return an option as its help spells it: torchrun and Accelerate also take underscores."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def spell_option(field: str) -> str:
    """Return the option of a field, which ends with an underscore if Python reserves the word."""
    return "--" + field.rstrip("_").replace("_", "-")


def replace_given(before: S, /, **changes: object) -> S:
    """Return a struct with all changes that are not None applied; the same object if none of them differs."""
    given = {
        name: value
        for name, value in changes.items()
        if value is not None and value is not getattr(before, name)
    }
    # Callers compare by identity, and a file omits a field only if it holds the default object itself.
    return msgspec.structs.replace(before, **given) if given else before


def _find_panel(annotation: object) -> str:
    """Return the help panel of an option: ``Annotated[..., typer.Option(rich_help_panel=...)]``."""
    return next(getattr(part, "rich_help_panel", None) or "" for part in get_args(annotation)[1:])
