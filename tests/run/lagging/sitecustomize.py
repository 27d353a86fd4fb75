"""Gives the device that lags to the workers of cold processes, which have this folder in ``PYTHONPATH``."""

import importlib
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

REACTOR = "elastane.run.worker.reactor"


class Finder(MetaPathFinder):
    """Installs the device as soon as a process has imported the module of the reactor."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != REACTOR:
            return None
        spec = PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            importlib.import_module("tests.run.laggard").install(int(os.environ["ELASTANE_TEST_LAGGARD"]))

        spec.loader.exec_module = execute_and_install
        return spec


if "ELASTANE_TEST_LAGGARD" in os.environ:
    sys.meta_path.insert(0, Finder())
