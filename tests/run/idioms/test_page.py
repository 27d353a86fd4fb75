"""``docs/idioms.md`` equals the catalogue; ``pytest tests/run/idioms --rewrite`` writes it again."""

from .catalogue import CATALOGUE
from .page import PAGE, build_page


def test_the_page_equals_the_catalogue(request):
    if request.config.getoption("--rewrite"):
        PAGE.write_text(build_page())
    else:
        assert PAGE.read_text() == build_page()


def test_every_idiom_has_a_description_and_every_refusal_has_a_correction():
    for idiom in CATALOGUE.values():
        assert idiom.sentence.endswith("."), idiom.name
        assert "\n" not in idiom.sentence, idiom.name
        assert idiom.note or not idiom.refusal, idiom.name
        assert idiom.refusal == idiom.refusal.lower(), idiom.name
