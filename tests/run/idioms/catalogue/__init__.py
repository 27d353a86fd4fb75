"""Common ways to write training code, each with the way a run treats it.

Each module is a theme; its docstring introduces the theme on the page.
"""

from . import between_steps, feeding, inside_steps, kept, losses, models, optimizers, recomputation, schedules
from .registry import CATALOGUE, Idiom

THEMES = (between_steps, kept, inside_steps, losses, models, recomputation, optimizers, schedules, feeding)
"""In the order of the page."""

__all__ = ["CATALOGUE", "THEMES", "Idiom"]
