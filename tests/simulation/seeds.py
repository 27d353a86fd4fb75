"""Seeds of histories that tests draw."""

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

# Hypothesis begins with the simplest seed. Without the filter, a test of one seed would always get 0.
SEEDS = st.integers(0, 2**32 - 1).filter(lambda seed: seed != 0)


def draw_seeds(count, **others):
    """Return a decorator that calls a test, or each of its cases, with this many seeds.

    A failing seed is printed. It is not shrunk: a smaller seed makes no simpler history.

    Args:
        count: the number of seeds.
        others: strategies for other arguments of the test.
    """
    phases = [Phase.explicit, Phase.reuse, Phase.generate]

    def decorate(test):
        # The same in each run: some assertions are about times, and other seeds were not tried.
        drawn = settings(max_examples=count, deadline=None, phases=phases, derandomize=True)
        return drawn(given(seed=SEEDS, **others)(test))

    return decorate
