"""The script of a run as the module ``__main__``, as ``python script.py`` and ``python -m`` make it."""

import gc
import importlib.util
import sys
import weakref
from importlib.abc import InspectLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from elastane.run.attempts.script_modules import find_package_root
from elastane.run.nouns.spec import RunSpec

_main: ModuleType | None = None


def run_main_program(spec: RunSpec) -> None:
    """Run the script as the main program of this process.

    Its module stays in place after its end: threads, exit handlers and pickles of the script need it.
    """
    global _main  # noqa: PLW0603 - a process has one main program
    sys.argv = [spec.script, *spec.args]
    folder = str(
        find_package_root(spec.module, Path(spec.script))
        if spec.module
        else Path(spec.script).resolve().parent
    )
    if not spec.module or folder not in sys.path:
        sys.path.insert(0, folder)
    main = _main = ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    code = _load_module(spec.module, main) if spec.module else _load_script(Path(spec.script), main)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)  # noqa: S102 - the user's program


class _Anchor:
    """Lives as long as the values of the main program, without keeping them alive."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values


def drop_main_program() -> None:
    """Drop the values of the main program; their finalizers still find the others.

    The garbage collector calls the finalizers first. If something else holds the module, such as a thread,
    its values go one after the other, the last one first.
    """
    global _main  # noqa: PLW0603 - see above
    if _main is None:
        return
    _main.__dict__["__anchor__"] = _Anchor(_main.__dict__)
    anchor = weakref.ref(_main.__dict__["__anchor__"])
    sys.modules.pop("__main__", None)
    _main = None
    gc.collect()
    if (left := anchor()) is not None:
        for name in reversed([name for name in left.values if name not in ("__builtins__", "__anchor__")]):
            left.values.pop(name, None)
        gc.collect()


def _load_script(script: Path, main: ModuleType) -> CodeType:
    main.__file__ = str(script)
    return compile(script.read_bytes(), str(script), "exec", dont_inherit=True)


def _load_module(name: str, main: ModuleType) -> CodeType:
    """Return the code of a module, or of ``__main__`` of a package.

    Raises:
        ImportError: there is no such module, or it has no code.
    """
    found = importlib.util.find_spec(name)
    if found is not None and found.submodule_search_locations is not None:
        found = importlib.util.find_spec(f"{name}.__main__")
    loader = None if found is None else found.loader
    code = loader.get_code(found.name) if found is not None and isinstance(loader, InspectLoader) else None
    if found is None or code is None:
        raise ImportError(f"no code in the module {name}", name=name)
    main.__spec__, main.__loader__, main.__package__ = found, loader, found.parent
    main.__file__ = found.origin
    return code
