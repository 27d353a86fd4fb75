"""The modules that a script imports, found in its text, so that processes can be forked with them loaded."""

import ast
import sys
import sysconfig
from collections.abc import Iterator
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
