"""The registration of idioms in the catalogue."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass

from elastane import Run

Train = Callable[..., None]
Register = Callable[[Train], Train]


@dataclass(frozen=True)
class Idiom:
    """One way of writing training code.

    Args:
        title: the name of the idiom on the page.
        train: the code; takes the run, and a variant if the idiom has variants.
        note: a remark on an exact idiom; for a refused one, what to write instead.
        refusal: a phrase of the refusal, in lower case; empty: the idiom is exact.
        unsharded: a phrase of the refusal with ``--copies N``; empty: the idiom can be sharded.
        variants: the second arguments of ``train``, one for each test; empty: it takes none.
        shown: the page has the code.
        of_process: the bytes depend on the start of the process, so a run is compared with another run.
    """

    title: str
    train: Train
    note: str = ""
    refusal: str = ""
    unsharded: str = ""
    variants: tuple[str, ...] = ()
    shown: bool = False
    of_process: bool = False

    @property
    def name(self) -> str:
        return self.train.__name__

    @property
    def module(self) -> str:
        """The name of its module, without the packages."""
        return self.train.__module__.rpartition(".")[2]

    @property
    def sentence(self) -> str:
        """The docstring of the code."""
        return inspect.cleandoc(self.train.__doc__ or "")

    @property
    def code(self) -> str:
        """The classes and functions that the code names, and the code without decorator and docstring."""
        module = sys.modules[self.train.__module__]
        parts_named = [getattr(module, name, None) for name in self.train.__code__.co_names]
        own = [part for part in parts_named if getattr(part, "__module__", None) == module.__name__]
        parts = [inspect.getsource(part).rstrip() for part in own]
        lines = inspect.getsource(self.train).splitlines()
        begin = next(number for number, line in enumerate(lines) if line.startswith("def "))
        return "\n\n\n".join([*parts, "\n".join([lines[begin], *lines[begin + 2 :]])])

    def __call__(self, run: Run, variant: str = "") -> None:
        """Train."""
        self.train(run, variant) if self.variants else self.train(run)


CATALOGUE: dict[str, Idiom] = {}


def register_exact(
    title: str,
    *,
    note: str = "",
    unsharded: str = "",
    variants: tuple[str, ...] = (),
    shown: bool = False,
    of_process: bool = False,
) -> Register:
    """Register an idiom with the same bytes in every run; see `Idiom` for the arguments."""

    def register(train: Train) -> Train:
        return _register(
            Idiom(
                title,
                train,
                note,
                unsharded=unsharded,
                variants=variants,
                shown=shown,
                of_process=of_process,
            )
        )

    return register


def register_refused(
    title: str, phrase: str, *, instead: str, variants: tuple[str, ...] = (), shown: bool = False
) -> Register:
    """Register an idiom that a run refuses with this phrase; see `Idiom` for the arguments."""

    def register(train: Train) -> Train:
        return _register(Idiom(title, train, instead, refusal=phrase, variants=variants, shown=shown))

    return register


def _register(idiom: Idiom) -> Train:
    if idiom.name in CATALOGUE:
        raise ValueError(f"two idioms are called {idiom.name}")
    CATALOGUE[idiom.name] = idiom
    return idiom.train
