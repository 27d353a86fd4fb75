"""Reads of memory that take time: what changes while it is read is torn."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from elastane.run.protocol.events import Event

Source: TypeAlias = Callable[[], int]
"""Returns the symbol that a place in memory has now."""

TORN, UNFINISHED = hash(("torn",)), hash(("unfinished",))


def fix_source(symbol: int) -> Source:
    """Return the source of a symbol that came with a frame, which nothing changes."""
    return lambda: symbol


class Read:
    """A read that is under way.

    Args:
        sources: the places that it reads.
        write: writes the results and returns the answer, from the symbols in the order of the sources.
        check: checks the results, after the member has handled the answer; it gets `torn`.

    Attributes:
        torn: the number of places that have changed meanwhile; known after `end`.
    """

    def __init__(
        self,
        sources: Iterable[Source],
        write: Callable[[list[int]], Event],
        check: Callable[[int], None] = lambda _torn: None,
    ) -> None:
        self._sources = list(sources)
        self._begun = [look() for look in self._sources]
        self._write = write
        self._check = check
        self.torn = 0

    def check(self) -> None:
        """Check the results that the member counts."""
        self._check(self.torn)

    def end(self) -> Event:
        """Write the results and return the answer to the action."""
        symbols = []
        for look, begun in zip(self._sources, self._begun, strict=True):
            ended = look()
            self.torn += ended != begun
            symbols.append(begun if ended == begun else hash((TORN, begun, ended)))
        return self._write(symbols)
