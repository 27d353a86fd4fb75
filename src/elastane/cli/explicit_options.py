"""Which options of a command the user has typed; the others have their defaults."""

import typer


def list_explicit_options(context: typer.Context, *, left_out: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the options that were typed for a command, in the order of its help, with their values.

    Args:
        context: of the command.
        left_out: names of parameters that are shown otherwise.
    """
    words: list[str] = []
    for parameter in context.command.params:
        if parameter.param_type_name != "option" or parameter.name is None:
            continue
        source = context.get_parameter_source(parameter.name)
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[parameter.name]
        long_form = max(parameter.opts, key=len)
        if parameter.name not in left_out:
            words += [long_form] if value is True else [long_form, f"{value}"]
    return tuple(words)
