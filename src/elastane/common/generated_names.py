"""Generated names of runs and jobs: the stem of a script, a word and a number."""

import random

from elastane.common.home import find_runs_home

WORDS = (
    "amber", "aspen", "birch", "brisk", "calm", "cedar", "clear", "cobalt", "coral", "crisp",
    "dawn", "ember", "fern", "flint", "frost", "gentle", "hazel", "ivory", "jade", "keen", "lilac",
    "linen", "lunar", "maple", "mellow", "mint", "noble", "ocean", "olive", "onyx", "opal", "pearl",
    "plain", "quartz", "quick", "quiet", "rapid", "river", "ruby", "sable", "sage", "silver",
    "slate", "solar", "spruce", "steady", "stone", "swift", "teal", "tidal", "topaz", "umber",
    "velvet", "violet", "vivid", "warm", "willow", "winter", "young", "zinc",
)  # fmt: skip


def generate_name(stem: str) -> str:
    """Return an unused name for a run: the stem of its script, a word and a number."""
    taken = {entry.name for entry in find_runs_home().iterdir()} if find_runs_home().is_dir() else set()
    while True:
        # The name must not depend on the user's seed, and is not secret.
        word, number = random.choice(WORDS), random.randrange(10, 1000)
        name = f"{clean_stem(stem)}-{word}-{number}"
        if name not in taken:
            return name


def clean_stem(stem: str) -> str:
    """Return the stem of a script with all characters replaced that the name of a run must not have."""
    return "".join(c if c.isascii() and c.isalnum() else "-" for c in stem).strip("-")[:40] or "run"
