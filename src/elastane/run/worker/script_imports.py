"""The modules that a script imports: found in its text, and loaded before any process is forked."""

import ast
import importlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ScriptImport:
    """One import statement; ``names`` are those of ``from module import names``."""

    module: str
    names: tuple[str, ...] = ()

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


ALWAYS = (
    ScriptImport("torch"),
    ScriptImport("torch.distributed"),
    ScriptImport("torch.nn.parallel"),
    ScriptImport("torch.utils.data"),
    # The first optimizer of a process imports it.
    ScriptImport("torch._dynamo"),
)
"""What nearly every training script imports, directly or through modules of its own."""


def find_imports(script: Path) -> list[ScriptImport]:
    """Return the imports at the top level of a script that are the same for every process.

    These are modules of the standard library and installed packages. A module of the user is left out: its
    code may read the environment of a process, open files or change while the run lives.

    Args:
        script: a file of Python; without valid text there are no imports, and the script reports the error.
    """
    try:
        tree = ast.parse(script.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        found for found in _list_imports(tree.body) if _is_installed(found.package, script.resolve().parent)
    ]


def _list_imports(body: list[ast.stmt]) -> Iterator[ScriptImport]:
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (ScriptImport(alias.name) for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0) if module != "__future__":
                yield ScriptImport(module, tuple(alias.name for alias in names if alias.name != "*"))
            case ast.Try(body=inner) | ast.If(body=inner):
                yield from _list_imports(inner)
            case _:
                continue


def _is_installed(package: str, folder: Path) -> bool:
    """Return whether a package is of the standard library or of ``site-packages``.

    A file of this name in the script's folder takes precedence, so the script does not import the package.
    """
    if (folder / f"{package}.py").exists() or (folder / package).is_dir():
        return False
    if package in sys.stdlib_module_names:
        return True
    places = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *_list_shared_places()]
    found = PathFinder.find_spec(package, places)
    return found is not None and found.origin is not None


def _list_shared_places() -> list[str]:
    """Return the other folders of installed packages, such as those of the system beside a virtual one."""
    return [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]


def preload_imports(imports: Iterable[ScriptImport], left_out: frozenset[str]) -> str:
    """Import modules until one spoils this process for forks; return its package.

    A fork has only the thread that forks, and a forked process cannot use CUDA after its parent has.

    Args:
        imports: those to make, in order.
        left_out: packages to skip.

    Returns:
        The package that has started a thread or initialised CUDA; empty: none has. The caller must begin
        again in a new process, without it.
    """
    for wanted in imports:
        if wanted.package in left_out:
            continue
        _import_quietly(wanted)
        if count_threads() > 1 or is_cuda_initialised():
            return wanted.package
    return ""


def _import_quietly(one: ScriptImport) -> None:
    try:
        module = importlib.import_module(one.module)
        for name in one.names:
            # A package may load its parts only when they are read.
            if not hasattr(module, name):
                importlib.import_module(f"{one.module}.{name}")
    # The script makes the same import, and reports its own error.
    except BaseException as error:  # noqa: BLE001
        sys.stderr.write(f"not imported ahead: {one.module}: {type(error).__name__}: {error}\n")


def count_threads() -> int:
    """Return the number of threads of this process, whichever library has started them."""
    return len(list(Path("/proc/self/task").iterdir()))


def is_cuda_initialised() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
