"""``docs/idioms.md`` is what the catalogue says; ``pytest tests/idioms --rewrite`` writes it anew."""

from .catalogue import CATALOGUE
from .page import PAGE, page


def test_the_page_is_made_from_the_catalogue(request):
    if request.config.getoption("--rewrite"):
        PAGE.write_text(page())
    else:
        assert PAGE.read_text() == page()


def test_every_idiom_has_a_sentence_and_every_refusal_says_what_to_write_instead():
    for idiom in CATALOGUE.values():
        assert idiom.sentence.endswith("."), idiom.name
        assert "\n" not in idiom.sentence, idiom.name
        assert idiom.note or not idiom.refusal, idiom.name
        assert idiom.refusal == idiom.refusal.lower(), idiom.name
