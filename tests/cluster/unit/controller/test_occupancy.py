"""The occupancy of each pool."""

from elastane.cluster.controller.cluster.occupancy import measure_occupancy
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.nouns.usage import Use


def test_uses_of_all_jobs_on_all_terms_add_up_by_pool() -> None:
    pools = (Pool(name="a", device="h100", devices=8, leaving=3), Pool(name="b", device="cpu", devices=2))
    uses = (
        (Use(pool="a", terms="owned", devices=2), Use(pool="a", terms="borrowed", devices=1)),
        (Use(pool="a", terms="spot", devices=1), Use(pool="b", terms="owned", devices=2)),
    )
    first, second = measure_occupancy(pools, (), uses, {})
    assert (first.pool, first.used, first.free) == ("a", 4, 1)
    assert (second.pool, second.used, second.free) == ("b", 2, 0)


def test_leaving_devices_are_not_free_and_a_removed_pool_is_left_out() -> None:
    pools = (Pool(name="a", device="h100", devices=8, leaving=3),)
    (pool,) = measure_occupancy(
        pools,
        (),
        ((Use(pool="a", terms="owned", devices=1),), (Use(pool="b", terms="owned", devices=9),)),
        {},
    )
    assert (pool.used, pool.free) == (1, 4)


def test_a_limited_pool_in_full_use_has_no_free_device() -> None:
    (pool,) = measure_occupancy(
        (Pool(name="a", device="h100", devices=6, leaving=4),),
        (),
        ((Use(pool="a", terms="owned", devices=2),),),
        {},
    )
    assert pool.free == 0


def test_reserved_devices_are_not_free() -> None:
    pools = (Pool(name="a", device="h100", devices=8), Pool(name="b", device="h100", devices=8, leaving=6))
    uses = ((Use(pool="a", terms="owned", devices=1),),)
    first, second = measure_occupancy(pools, (), uses, {"a": 4, "b": 4})
    assert (first.reserved, first.free) == (4, 3)
    assert (second.reserved, second.free) == (2, 0)
