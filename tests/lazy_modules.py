"""Modules that the tests name and collection does not import."""

import importlib
from typing import Any


class LazyModule:
    """Imports a module when a test first reads one of its names.

    Each process of pytest-xdist collects all tests, and a library that few of them use costs it seconds.
    """

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # pytest asks each name of a test module for private attributes, such as `__test__`.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
