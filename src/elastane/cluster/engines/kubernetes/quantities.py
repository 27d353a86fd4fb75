"""Quantities of resources, as Kubernetes writes them. Pure."""

import re
from collections.abc import Mapping
from fractions import Fraction

MILLI = 1000
_FORM = re.compile(
    r"([+-]?[0-9]{1,18}(?:\.[0-9]{0,18})?|[+-]?\.[0-9]{1,18})(?:[eE]([+-]?[0-9]{1,2})|([A-Za-z]{0,2}))"
)
_SUFFIXES: Mapping[str, Fraction] = {
    "": Fraction(1),
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate("num", start=-3)},
    **{suffix: Fraction(1000) ** power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", start=1)},
}


def parse_quantity(text: str) -> int:
    """Return a quantity in thousandths, rounded up: 500 for ``500m``, 2048000 for ``2Ki``.

    Raises:
        ValueError: the text is not a quantity.
    """
    match = _FORM.fullmatch(text)
    if match is None or (match[3] or "") not in _SUFFIXES:
        raise ValueError(f"{text[:40]!r} is not a quantity")
    scale = Fraction(10) ** int(match[2]) if match[2] else _SUFFIXES[match[3] or ""]
    thousandths = Fraction(match[1]) * scale * MILLI
    return -(-thousandths.numerator // thousandths.denominator)
