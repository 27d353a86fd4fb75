"""What the script has given to attributes of modules since the last step: every vote compares its digests."""

import hashlib
import time
from collections.abc import Mapping
from typing import Any

from elastane.run.worker.state.json_state import digest_text, to_json_text
from elastane.run.worker.state.module_attributes import Live, Opaque, PlainCopy, Reading, is_object
from elastane.run.worker.state.plain_data import NotPlain, ReadLimitExceeded, encode_plain

MOST_NAMED = 8
"""Votes compare more attributes than these together, under one name."""
CLOCKS = (time.time, time.monotonic, time.perf_counter)
CLOCKS_NS = (time.time_ns, time.monotonic_ns, time.perf_counter_ns)
BEGAN = {clock: clock() for clock in (*CLOCKS, *CLOCKS_NS)}
"""The clocks when this process, or the one that has forked it, began."""


def digest_changes(before: Reading, now: Reading, left: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return digests of the attributes that the script has changed, by a name that an error can show.

    Times that a clock has shown are left out: each worker has its own. So are attributes of configurations
    and other objects: libraries write into them when one worker saves the model.

    Args:
        before: the reading at the beginning of the last step.
        now: the present reading, or the part of it that differs.
        left: the attributes of each module when the script got control after the step, by path: what forward
            passes have left there does not come from the script.
    """
    found = {}
    for (path, name), value in now.items():
        if name == "training":  # a digest of its own compares the modes
            continue
        # The dict itself stands for no value: None is one.
        content = _find_content(before.get((path, name), before), value, left.get(path, {}).get(name, left))
        if content is not None:
            attribute = ".".join(filter(None, (path, name)))
            found[f"the attribute {attribute}"] = hashlib.sha256(content).hexdigest()[:16]
    return found if len(found) <= MOST_NAMED else {"attributes of modules": digest_text(to_json_text(found))}


def _find_content(before: Any, now: Any, left: Any) -> bytes | None:
    """Return the bytes of a reading; None: the script has not changed the value, or it cannot be compared."""
    value = now.value if isinstance(now, PlainCopy | Live | Opaque) else now
    is_in_place = isinstance(now, PlainCopy) and isinstance(before, PlainCopy) and before.value is value
    if isinstance(now, Opaque) or (value is left and not is_in_place) or reads_clock(value):
        return None
    if isinstance(now, PlainCopy) and is_object(value):
        return None
    content = _encode(now)
    return content if content is not None and content != _encode(before) else None


def _encode(reading: Any) -> bytes | None:
    """Return the bytes of a reading; None: it is too large, or not plain data."""
    if isinstance(reading, PlainCopy):
        return reading.content
    try:
        return encode_plain(reading.value if isinstance(reading, Live) else reading, limited=True)
    except (NotPlain, ReadLimitExceeded):
        return None


def reads_clock(value: object) -> bool:
    """Return whether a value is a time that one of Python's clocks has shown since this process began."""
    if type(value) is float:
        return not value.is_integer() and any(BEGAN[clock] <= value <= clock() for clock in CLOCKS)
    return type(value) is int and any(BEGAN[clock] <= value <= clock() for clock in CLOCKS_NS)
