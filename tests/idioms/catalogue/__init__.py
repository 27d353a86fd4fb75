"""How people write training code, and what becomes of each way of writing it.

Each module is a theme; its docstring introduces the theme on the page.
"""

from . import between_steps, inside_steps, kept
from .registry import CATALOGUE, Idiom

__all__ = ["CATALOGUE", "Idiom", "between_steps", "inside_steps", "kept"]
