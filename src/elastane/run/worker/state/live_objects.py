"""A search for objects of the script among all objects of the process."""

import gc
from typing import TypeVar

from torch import nn

Kind = TypeVar("Kind")


def find_live_objects(kind: type[Kind]) -> list[Kind]:
    """Return every object of a type, or of one derived from it, that is alive in this process.

    Compares `type(object)`, not `object.__class__`: a proxy may import or warn when its class is read.
    """
    return [found for found in gc.get_objects() if issubclass(type(found), kind)]


def find_live_modules() -> list[nn.Module]:
    """Return every module that is alive in this process.

    Not one without parts: its ``__init__`` has failed, and a traceback keeps it, or the garbage collector has
    emptied it, and code of C++ keeps it.
    """
    return [module for module in find_live_objects(nn.Module) if hasattr(module, "_modules")]
