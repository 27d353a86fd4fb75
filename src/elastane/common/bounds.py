"""Bounds of the numbers in documents that jobs write and others read.

A number beyond these cannot be true, so a document that contains one is refused when it is read. The bounds
leave room for arithmetic: sums and products of a few such numbers fit into 64 bits or a float.
"""

from typing import Annotated, TypeAlias

from msgspec import Meta

LARGEST_COUNT = 10**9
"""The most devices, workers or virtual ranks, samples of one step, or attempts of one job."""
MOST_STEPS = 10**12
LAST_MOMENT_S = 253_402_300_799.0
"""The end of the year 9999; Python has no later dates."""
LONGEST_S = 1e12

Count: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_COUNT)]
VirtualRanks: TypeAlias = Annotated[int, Meta(ge=0, le=10**6)]
"""Virtual ranks of one run. Readers keep an entry for each of them."""
Blocks: TypeAlias = Annotated[int, Meta(ge=0, le=10**6)]
"""The number of a block of the state, or a number of blocks. Readers keep an entry for each of them."""
Steps: TypeAlias = Annotated[int, Meta(ge=0, le=MOST_STEPS)]
"""Number of a step, or a number of steps."""
Position: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
"""A position in a dataset or a file."""
Percent: TypeAlias = Annotated[int, Meta(ge=0, le=100)]
Moment: TypeAlias = Annotated[float, Meta(ge=0, le=LAST_MOMENT_S)]
"""Seconds since 1970."""
Duration: TypeAlias = Annotated[float, Meta(ge=0, le=LONGEST_S)]
"""Seconds."""
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e16)]
"""An amount of money, or samples per second."""
Samples: TypeAlias = Annotated[float, Meta(ge=0, le=1e22)]
"""Samples of a whole run, bounded by the most steps of the largest batch."""
Difference: TypeAlias = Annotated[float, Meta(ge=-1e15, le=1e15)]
"""The difference of two measurements; may be negative."""
