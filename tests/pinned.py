"""What the run of a test has pinned."""

from elastane.run.nouns.spec import Pinned

SMALL_RUN = Pinned(
    script_digest="",
    virtual_ranks=8,
    global_batch=8,
    microbatch=1,
    dataset_length=8,
    steps=10,
    seed=0,
    threads=1,
    convergence="exact",
    copies=None,
    parameters=1,
    blocks=1,
    layout_digest="",
    optimizer="",
    versions={},
)
"""A small run; tests replace what they are about."""
