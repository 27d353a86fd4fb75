"""The page ``docs/idioms.md``, which is built from the catalogue."""

import inspect
from pathlib import Path
from textwrap import fill

from .catalogue import CATALOGUE, THEMES, Idiom

PAGE = Path(__file__).parents[3] / "docs" / "idioms.md"
WIDTH = 110

INTRODUCTION = """\
# How training code is written

How a run treats common ways to write training code. `run` is the object that `elastane.join()` returns.

Each entry is a test. Its code trains on one worker without interruption. It trains again while a worker
joins, another one is killed in the middle of a step, and a third one replaces it. It trains once more with
`--copies 1`, while two workers join and the first is drained. The code is in `tests/run/idioms/catalogue/`.
`pytest tests/run/idioms --rewrite` builds this page from it.

- **exact**: parameters, optimizer state and losses have the same bits in all three trainings.
- **exact, not sharded**: the same, but a run with `--copies N` refuses the script.
- **refused**: the run ends with an error that says why, and what to write instead.

A run does not notice every mistake. Suppose a variable of the script changes from step to step, and the loss
depends on it. In a worker that joins, it starts from its first value. So keep it in `run.keep`; see
[assumptions](assumptions.md).
"""


def build_page() -> str:
    """Return the text of the page."""
    parts = [INTRODUCTION]
    for theme in THEMES:
        idioms = [idiom for idiom in CATALOGUE.values() if idiom.train.__module__ == theme.__name__]
        parts.append(_build_section(inspect.cleandoc(theme.__doc__), idioms))
    return "\n".join(parts)


def _build_section(theme: str, idioms: list[Idiom]) -> str:
    title, _, introduction = theme.partition("\n")
    rows = [
        f"| {idiom.title} | {idiom.sentence} | {_describe_verdict(idiom)} | {idiom.note} |".replace("  ", " ")
        for idiom in idioms
    ]
    head = [
        "| idiom | what the script does | verdict | note, or what to write instead |",
        "|---|---|---|---|",
    ]
    table = "\n".join([*head, *rows])
    codes = [
        fill(f"{idiom.title}: {idiom.sentence[0].lower()}{idiom.sentence[1:]}", WIDTH)
        + f"\n\n```python\n{idiom.code}\n```"
        for idiom in idioms
        if idiom.shown
    ]
    return "\n\n".join(filter(None, [f"## {title.rstrip('.')}", introduction.strip(), table, *codes])) + "\n"


def _describe_verdict(idiom: Idiom) -> str:
    if idiom.refusal:
        return "refused"
    return "exact, not sharded" if idiom.unsharded else "exact"
