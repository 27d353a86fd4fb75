"""``elastane priority``: priority classes of jobs."""

from typing import Annotated

from elastane.cli.command import AsJson, make_group
from elastane.cli.operators.declarations import Name, add_document_commands, change_document
from elastane.cli.options import argument, flag, option, replace_given
from elastane.cluster.nouns.config import PriorityClass


def set_priority(
    name: Name,
    value: Annotated[
        int, argument("PRIORITY", "Priority of the jobs of this class; a higher number is more important.")
    ],
    *,
    default: Annotated[
        bool | None, flag("Whether jobs without a priority class get this one.", "--default/--no-default")
    ] = None,
    description: Annotated[str | None, option("TEXT", "A description, shown in the list of classes.")] = None,
    as_json: AsJson = False,
) -> None:
    """Declare a priority class, or change the given fields of one."""

    def change_priority(before: PriorityClass | None) -> PriorityClass:
        known = before or PriorityClass(name=name, value=value)
        return replace_given(known, value=value, default=default, description=description)

    change_document("priority", PriorityClass, name, change_priority, as_json=as_json)


priority = make_group(
    "priority",
    """
Manage priority classes: names for the importance of jobs.

  $ elastane priority set urgent 1000
  $ elastane priority set usual 100 --default
""",
    {"set": set_priority},
    # A negative value is an argument, not an option.
    ignore_unknown_options=True,
)
add_document_commands(
    priority,
    "priority",
    PriorityClass,
    {
        "priority": lambda priority: priority.name,
        "value": lambda priority: str(priority.value),
        "default": lambda priority: "yes" if priority.default else "",
        "description": lambda priority: priority.description,
    },
    numbers=("value",),
    order=lambda priority: -priority.value,
)
