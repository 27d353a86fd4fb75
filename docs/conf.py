"""The documentation site: `make docs` builds it into build/site, with warnings as errors."""

import re
from typing import Any

from pygments.lexers.special import TextLexer

import elastane

project = "Elastane"
author = "The Elastane contributors"
copyright = "the Elastane contributors"  # noqa: A001 - Sphinx reads this name
release = version = elastane.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns: list[str] = []
default_role = "literal"
nitpicky = False

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"Elastane {release}"
html_theme_options = {"navigation_with_keys": True}
html_static_path: list[str] = []
html_extra_path = ["picture.svg"]
html_show_copyright = False

LINK = re.compile(r"\[([^]]+)\]\(((?:\.\./)+)(?!docs/)([A-Za-z0-9_./-]+)(?:#[a-z-]+)?\)")


def name_files_outside(_app: object, name: str, source: list[str]) -> None:
    """Turn links from the page `name` to files of the repository that are no pages into their names."""

    def name_file(link: re.Match[str]) -> str:
        text, up, path = link.groups()
        if up.count("/") <= name.count("/"):
            # Another page.
            return link.group()
        return f"`{path}`" if path.endswith(text.strip("`")) else f"{text} (`{path}`)"

    source[0] = LINK.sub(name_file, source[0])


def turn_fences_into_blocks(
    _app: object, _what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Turn Markdown's fenced code in a docstring into the block that reStructuredText has for it."""
    turned: list[str] = []
    inside = False
    for line in lines:
        if line.strip().startswith("```"):
            inside = not inside
            turned += ["", f".. code-block:: {line.strip().strip('`') or 'text'}", ""] if inside else [""]
        else:
            turned.append(f"   {line}" if inside else line)
    lines[:] = turned


def setup(app: Any) -> None:
    """Register what this file does; Sphinx calls it."""
    app.connect("source-read", name_files_outside)
    app.connect("autodoc-process-docstring", turn_fences_into_blocks)
    app.add_lexer("mermaid", TextLexer)
