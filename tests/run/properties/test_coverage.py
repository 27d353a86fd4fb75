"""A manifest is complete exactly if it has every element once."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from elastane.run.checkpoints.catalog import find_gaps
from elastane.run.nouns.checkpoints import Manifest, PartFile, PartItem, TensorFacts, format_part_name


def build_manifest(stretches, *, elements=12, **more):
    facts = TensorFacts("float32", 4, (elements,), (1,))
    parts = tuple(
        PartFile(
            name=format_part_name(worker),
            bytes=0,
            checksum="",
            tensors={"model.w": facts},
            items=(PartItem("model.w", (start,), (stop - start,), 0, 0, 0, ""),),
        )
        for worker, (start, stop) in enumerate(stretches)
    )
    return Manifest(name="step-00000001", step=1, created="", parts=parts, **more)


borders = st.lists(st.integers(0, 12), max_size=6)


@given(borders, st.randoms(use_true_random=False))
def test_tiles_cover_a_tensor_in_any_order_but_not_without_one_of_them(inner, shuffled):
    cuts = sorted({0, 12, *inner})
    tiles = list(pairwise(cuts))
    shuffled.shuffle(tiles)
    assert find_gaps(build_manifest(tiles)) == ()
    for left_out in range(len(tiles)):
        holes = find_gaps(build_manifest(tiles[:left_out] + tiles[left_out + 1 :], elements=12))
        if len(tiles) > 1:
            assert [damage.file for damage in holes] == ["model.w"]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), min_size=1, max_size=5))
def test_coverage_agrees_with_counting_each_element(stretches):
    counts = [0] * 12
    for start, stop in stretches:
        for position in range(start, stop):
            counts[position] += 1
    whole = all(count == 1 for count in counts)
    assert (find_gaps(build_manifest([s for s in stretches if s[0] < s[1]] or [(0, 0)])) == ()) == whole


def test_a_problem_names_its_elements():
    assert str(find_gaps(build_manifest([(0, 4), (6, 12)]))[0]) == "model.w: 2 of 12 elements are missing"
    assert (
        str(find_gaps(build_manifest([(0, 4), (3, 12)]))[0])
        == "model.w: [1] elements at [3] are stored twice"
    )
    assert str(find_gaps(build_manifest([(0, 13)]))[0]) == "model.w: a part is outside: [13] at [0] of [12]"


def test_an_alias_of_a_missing_tensor_is_damage():
    (damage,) = find_gaps(build_manifest([(0, 12)], aliases={"model.v": "model.u"}))
    assert damage.file == "model.v"
