"""Blocks tile the sections of any state."""

from hypothesis import given
from hypothesis import strategies as st

from elastane.run.protocol.layout import ALIGNMENT, LARGEST_BLOCK, SMALLEST_BLOCK, cut_blocks

sections = st.lists(st.integers(0, 30_000_000), min_size=1, max_size=5)


@given(sections)
def test_blocks_tile_every_section_in_order(sections):
    blocks = cut_blocks(sections)
    for number, elements in enumerate(sections):
        place = 0
        for block in (b for b in blocks if b.section == number):
            assert block.start == place
            place = block.stop
        assert place == elements
    assert [b.section for b in blocks] == sorted(b.section for b in blocks)
    assert sum(b.elements for b in blocks) == sum(sections)


@given(sections)
def test_borders_are_aligned_and_no_block_is_too_large(sections):
    for block in cut_blocks(sections):
        assert block.start % ALIGNMENT == 0
        assert 0 < block.elements <= LARGEST_BLOCK


@given(sections)
def test_blocks_are_about_a_sixteenth_unless_that_is_too_small_or_too_large(sections):
    total = sum(sections)
    usual = min(max(total / 16, SMALLEST_BLOCK), LARGEST_BLOCK)
    full = [b for b in cut_blocks(sections) if b.stop != sections[b.section]]
    assert all(usual <= b.elements < usual + ALIGNMENT for b in full)
