"""How an idiom is entered into the catalogue."""

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
        title: what a reader of the page looks for.
        train: the code; takes the run, and a variant if there are any.
        note: for an exact idiom a remark, for a refused one what to write instead.
        refusal: a phrase of the sentence that refuses it, in lower case; empty: it is exact.
        unsharded: a phrase of the sentence that refuses it with ``--copies N``; empty: it can be sharded.
        variants: what else it is called with, one after the other; empty: with nothing.
        shown: the page has its code.
        of_process: its bytes depend on how the process was started, so runs are compared with a run.
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
    def sentence(self) -> str:
        """Its docstring."""
        return inspect.cleandoc(self.train.__doc__ or "")

    @property
    def code(self) -> str:
        """The classes and functions it names, then itself without decorator and docstring."""
        module = sys.modules[self.train.__module__]
        named = [getattr(module, name, None) for name in self.train.__code__.co_names]
        own = [part for part in named if getattr(part, "__module__", None) == module.__name__]
        parts = [inspect.getsource(part).rstrip() for part in own]
        lines = inspect.getsource(self.train).splitlines()
        begin = next(number for number, line in enumerate(lines) if line.startswith("def "))
        return "\n\n\n".join([*parts, "\n".join([lines[begin], *lines[begin + 2 :]])])

    def __call__(self, run: Run, variant: str = "") -> None:
        """Train."""
        self.train(run, variant) if self.variants else self.train(run)


CATALOGUE: dict[str, Idiom] = {}


def exact(
    title: str,
    *,
    note: str = "",
    unsharded: str = "",
    variants: tuple[str, ...] = (),
    shown: bool = False,
    of_process: bool = False,
) -> Register:
    """The bytes are the same whatever happens to the workers; see `Idiom` for the arguments."""

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


def refused(
    title: str, phrase: str, *, instead: str, variants: tuple[str, ...] = (), shown: bool = False
) -> Register:
    """The run ends with a sentence that has this phrase; see `Idiom` for the arguments."""

    def register(train: Train) -> Train:
        return _register(Idiom(title, train, instead, refusal=phrase, variants=variants, shown=shown))

    return register


def _register(idiom: Idiom) -> Train:
    if idiom.name in CATALOGUE:
        raise ValueError(f"two idioms are called {idiom.name}")
    CATALOGUE[idiom.name] = idiom
    return idiom.train
