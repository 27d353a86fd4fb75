"""The check that a checkpoint holds every element of every tensor exactly once."""

from collections.abc import Iterator

from elastane.common.errors import FileDamage
from elastane.run.nouns.checkpoints import Manifest, PartItem, TensorFacts

NAMED_PROBLEMS = 5
"""The number of problems to name per tensor; the rest is counted."""


def find_gaps(manifest: Manifest) -> tuple[FileDamage, ...]:
    """Return every tensor with a missing or repeated element; empty if the manifest is complete.

    A manifest is published only if this is empty: no other check notices a missing part of a dead writer.
    """
    return tuple(_find_problems(manifest))


def _find_problems(manifest: Manifest) -> Iterator[FileDamage]:
    tensors = manifest.tensors
    items: dict[str, list[PartItem]] = {key: [] for key in tensors}
    for part in manifest.parts:
        for key, facts in part.tensors.items():
            if facts != tensors[key]:
                yield FileDamage(
                    part.name, f"{key} is {_describe(facts)}, elsewhere {_describe(tensors[key])}"
                )
        for item in part.items:
            if item.key in items:
                items[item.key].append(item)
            else:
                yield FileDamage(part.name, f"holds {item.key}, which has no shape")
    for key, pieces in items.items():
        yield from _check_tensor(key, tensors[key].elements, pieces)
    for alias, key in manifest.aliases.items():
        if key not in tensors:
            yield FileDamage(alias, f"is another name of {key}, which is not stored")


def _check_tensor(key: str, elements: int, items: list[PartItem]) -> Iterator[FileDamage]:
    problems, position = [], 0
    for item in sorted(items, key=lambda item: (item.start, item.stop)):
        if item.start > position:
            problems.append(f"elements {position} to {item.start} are missing")
        elif item.start < position:
            problems.append(f"elements {item.start} to {min(position, item.stop)} are stored twice")
        position = max(position, item.stop)
    if position != elements:
        is_short = position < elements
        problems.append(
            f"elements {position} to {elements} are missing"
            if is_short
            else f"has {elements} elements, and {position} are stored"
        )
    if not items and not elements:
        problems.append("is not stored")
    if len(problems) > NAMED_PROBLEMS:
        problems[NAMED_PROBLEMS:] = [f"and {len(problems) - NAMED_PROBLEMS} more"]
    for problem in problems:
        yield FileDamage(key, problem)


def _describe(facts: TensorFacts) -> str:
    return f"{facts.dtype} {list(facts.shape)} with strides {list(facts.stride)}"
