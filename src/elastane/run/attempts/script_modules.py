"""The file of a module that ``python -m`` would run, found without importing the module."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from elastane.common.errors import BadInput

MAIN = "__main__"


def find_module_file(module: str, folder: Path | None) -> Path:
    """Return the file that ``python -m module`` would run in this folder.

    Args:
        module: its dotted name.
        folder: absolute; searched before the installed packages. None: only those are searched.

    Raises:
        BadInput: there is no such module, or it cannot be run.
    """
    outermost, *inner = module.split(".")
    if outermost != MAIN and all(name.isidentifier() for name in (outermost, *inner)):
        for place in _find_packages(outermost, folder):
            path = place.joinpath(*inner)
            source, package = path.with_name(path.name + ".py"), path / "__init__.py"
            if source.is_file() and not package.is_file():
                return source
            if (path / f"{MAIN}.py").is_file():
                return path / f"{MAIN}.py"
            if path.is_dir():
                raise BadInput(
                    f"{module} is a package without a {MAIN}.py",
                    do=f"name the module in it that trains, such as {module}.train",
                )
    where = f"in {folder} or installed" if folder is not None else "installed"
    raise BadInput(
        f"there is no Python module {module} {where}",
        means="modules are searched as by python -m, first in the working directory",
        do="correct the name, start in the directory of its outermost package, or install the package",
    )


def find_package_root(module: str, file: Path) -> Path:
    """Return the directory that contains the outermost package of a module, or the module itself."""
    return file.parents[module.removesuffix(f".{MAIN}").count(".") + (file.stem == MAIN)]


def _find_packages(outermost: str, folder: Path | None) -> Iterator[Path]:
    """Yield the possible paths of the outermost package or module, without suffix, in order of precedence.

    A folder without ``__init__.py`` is a package too, but hides none that is installed (PEP 420).
    """
    here = None if folder is None else folder / outermost
    if here is not None and ((here / "__init__.py").is_file() or here.with_name(f"{outermost}.py").is_file()):
        yield here
    # A module without a package is found without an import.
    found = find_spec(outermost)
    if found is not None and found.submodule_search_locations is not None:
        yield from (Path(place) for place in found.submodule_search_locations)
    elif found is not None and found.has_location and found.origin is not None:
        yield Path(found.origin).with_suffix("")
    if here is not None:
        yield here
