"""``elastane engine``: systems that start the agents of jobs on other machines."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias

import msgspec
import typer

from elastane.cli.command import AsJson, make_group, open_console, print_json
from elastane.cli.operators.declarations import Name, add_document_commands, change_document
from elastane.cli.options import KUBERNETES, SLURM, argument, expand_options, option, replace_given
from elastane.cluster.client.context import connect
from elastane.cluster.nouns.config import DeclaredEngine
from elastane.cluster.nouns.engine_options import OPTIONS, EngineKind
from elastane.cluster.nouns.option_forms import EngineOption
from elastane.common.errors import BadInput
from elastane.common.exit_codes import ExitCode
from elastane.common.safe_text import fold_text

OF_ENGINES = {option.name: option for table in OPTIONS.values() for option in table.engine}
OF_POOLS = {option.name: option for table in OPTIONS.values() for option in table.pool}
NAMED_OF_ENGINES = ("context", "image")
"""Options of engines that have an option of the command line."""
SHOWN = 40
"""Characters of an option's value in the list of engines."""

OptionList: TypeAlias = Annotated[
    list[str] | None,
    option(
        "NAME=VALUE",
        "An option of the kind of engine, see docs/engines.md; repeatable. NAME= removes it.",
        "--option",
    ),
]
EngineName = Annotated[str, argument("ENGINE", "Name of the engine.")]


def make_flag(option: EngineOption, panel: str = SLURM) -> Any:
    """Return the option of the command line for an option of engines or pools that many of them need."""
    return typer.Option(metavar=option.metavar, help=option.help, rich_help_panel=panel)


def change_options(
    before: Mapping[str, str], typed: Iterable[str] | None, named: Mapping[str, str | None] | None = None
) -> dict[str, str]:
    """Return the options after a command: one that was not typed stays, and an empty text removes one.

    Args:
        typed: words of ``--option``, NAME=VALUE.
        named: those with an option of the command line; None: not typed.
    """
    given = {name: value for name, value in (named or {}).items() if value is not None}
    for word in typed or ():
        name, sign, value = word.partition("=")
        if not sign:
            raise BadInput(f"--option {word} has no value", do=f"write --option {word}=VALUE")
        given[name] = value
    return {name: value for name, value in (dict(before) | given).items() if value}


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``elastane engine set`` as typed; None: not typed."""

    kind: Annotated[
        EngineKind | None, option("|".join(OPTIONS), "Kind of the engine; a new one needs it.")
    ] = None
    context: Annotated[str | None, make_flag(OF_ENGINES["context"], KUBERNETES)] = None
    image: Annotated[str | None, make_flag(OF_ENGINES["image"], KUBERNETES)] = None
    option: OptionList = None


@expand_options
def set_engine(name: Name, *, options: EngineOptions, as_json: AsJson = False) -> None:
    """Declare an engine, or change the given fields of one.

    Only operators can read engines, because lines of shell may hold passwords.
    """

    def change_engine(before: DeclaredEngine | None) -> DeclaredEngine:
        kind = options.kind or (None if before is None else before.kind)
        if kind is None:
            raise BadInput(
                f"there is no engine {name} yet, so it needs --kind",
                do=f"elastane engine set {name} --kind slurm",
            )
        known = before or DeclaredEngine(name=name, kind=kind)
        named = {name: getattr(options, name) for name in NAMED_OF_ENGINES}
        return replace_given(known, kind=kind, options=change_options(known.options, options.option, named))

    change_document("engine", DeclaredEngine, name, change_engine, as_json=as_json)


def format_options(options: Mapping[str, str]) -> str:
    """Return options as one line of a table: ``partition=gpu time=8:00:00``."""
    return " ".join(f"{name}={fold_text(value, SHOWN)}" for name, value in sorted(options.items()))


engine = make_group(
    "engine",
    """
Manage engines: systems such as Slurm, Kubernetes and Ray, which start the agents of jobs on other machines.

  $ elastane engine set hpc --kind slurm --option setup="$(cat setup.sh)"
  $ elastane pool set a100 --device a100 --engine hpc --partition gpu --option gres=gpu:a100

  $ elastane engine set east --kind kubernetes --context east --image team/train:1
  $ elastane pool set h100 --device h100 --engine east --option resource=nvidia.com/gpu

  $ elastane engine set ray --kind ray --option address=10.0.0.5:6379
""",
    {"set": set_engine},
)
add_document_commands(
    engine,
    "engine",
    DeclaredEngine,
    {
        "engine": lambda engine: engine.name,
        "kind": lambda engine: engine.kind,
        "options": lambda engine: format_options(engine.options),
    },
)


def doctor(engine: EngineName, as_json: AsJson = False) -> None:
    """Find out whether ENGINE has all that it needs, before the first job does.

    The controller looks on its own machine, and starts nothing. The exit code is
    1 if something is missing.
    """
    with connect() as cluster:
        found = cluster.examine_engine(engine)
    if as_json:
        print_json(found)
    else:
        console = open_console(as_json=False)
        for finding in found:
            console.print(f"{'ok' if finding.ok else 'wrong':<7}{finding.what}", markup=False, soft_wrap=True)
            if finding.do:
                console.print(f"{'':<7}do: {finding.do}", markup=False, soft_wrap=True)
    if not all(finding.ok for finding in found):
        raise typer.Exit(ExitCode.FAILED)
