"""The text files that a script wrote through ``run.artifact``, such as samples of a model, in the report."""

from collections.abc import Iterable
from html import escape

from elastane.common.safe_text import escape_text
from elastane.common.untrusted_data import Malformed, read_bytes
from elastane.run.observability.model_files import is_plain_name
from elastane.run.observability.run_files import Recorded

SUFFIX = ".txt"
MOST_TEXTS = 20
MOST_CHARACTERS = 4000
LARGEST_BYTES = 1 << 20


def render_text_artifacts(run: Recorded) -> Iterable[str]:
    """Yield the newest text artifacts, the newest first and open; the others open on a click."""
    texts = list(find_text_artifacts(run))
    if not texts:
        return
    yield "<h2>Text artifacts</h2>"
    for place, (step, name, text) in enumerate(texts):
        state = " open" if place == 0 else ""
        yield f'<details class="card"{state}><summary>step {step:,}: {escape(name)}</summary>'
        yield f"<pre>{escape(escape_text(text, MOST_CHARACTERS))}</pre></details>"


def find_text_artifacts(run: Recorded) -> Iterable[tuple[int, str, str]]:
    """Yield the step, name and text of the newest text artifacts; a file that cannot be read is left out."""
    found = 0
    for line in reversed(run.ledger):
        for name in line.artifacts:
            if found == MOST_TEXTS:
                return
            if not name.endswith(SUFFIX) or not is_plain_name(name):
                continue
            path = run.run_dir.artifacts / f"step-{line.step}" / name
            try:
                raw = read_bytes(path, LARGEST_BYTES, follow_links=False)
            except (OSError, Malformed):
                continue
            found += 1
            yield line.step, name, raw.decode(errors="replace")
