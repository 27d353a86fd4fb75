"""Measure the language and the shape of the code.

`python tools/measure_house.py` prints tables; `--keep` writes them into docs/measures.md, at each release.
`--tree DIR` measures another working tree (`git worktree add`). `--list PACKAGE` prints each place that
breaks a rule.
`tests/house/test_language.py` holds the counts of each package below the limits of `tests/house/limits/`;
`--lower` writes the counts of today there if they are smaller. `tools/measure_journeys.py` measures how many
files a piece of work passes through.
"""

import argparse
import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import elastane

ROOT = Path(__file__).parent.parent
LIMITS = ROOT / "tests/house/limits"
PAGE = ROOT / "docs/measures.md"
VERBS = frozenset((ROOT / "tests/house/verbs.txt").read_text().split())

PERSONS = re.compile(
    r"\b(who|whoever|whom|whomever|whose|somebody|nobody|anybody|everybody|whatever|what is)\b", re.IGNORECASE
)
"""Words that treat a program as a person, or make a sentence hard to read."""

PHRASES = re.compile(
    r"\b(in vain|for want of|so many|(?<!there )is no [a-z]+|(?<!there )are no [a-z]+"
    r"|lest|whence|thither|thereof|wherewith"
    r"|is told|are told|was told|has heard|is dealt|are dealt|another life|quiet run|warm server|onlooker)\b",
    re.IGNORECASE,
)
"""Phrases that have to be read twice, and words that the glossary has replaced."""

PARTICIPLES = frozenset((ROOT / "tests/house/participles.txt").read_text().split())
"""Irregular participles, without those that equal their infinitive, such as `cut` and `put`."""

VERBS_IN_ED = frozenset(
    {"bleed", "embed", "exceed", "feed", "heed", "need", "proceed", "seed", "shed", "speed"}
)

PROSE_WORD = re.compile(r"[A-Za-z']+")
STRING_OR_COMMENT = re.compile(
    r"""('{3}|"{3})(?:\\.|.)*?\1|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"|#[^\n]*""", re.DOTALL
)
"""A tokenizer would find the same comments in ten times the time."""


@dataclass(frozen=True)
class Function:
    """A function or method, as its signature describes it."""

    package: str
    module: str
    name: str
    line: int
    lines: int
    is_property: bool
    is_method: bool
    returns: str
    docstring: str


@dataclass
class Module:
    """One file of Python.

    Args:
        package: the folder below src/elastane, or `elastane` for files beside them; elsewhere the top folder.
        path: relative to the tree.
    """

    package: str
    path: str
    text: str

    @cached_property
    def comments(self) -> list[str]:
        return [found[0] for found in STRING_OR_COMMENT.finditer(self.text) if found[0].startswith("#")]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    def docstrings(self) -> Iterator[str]:
        for node in self.nodes:
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""

    def strings(self) -> Iterator[str]:
        """Yield the texts of at least four words other than docstrings: errors, help, tables."""
        # Of attributes too:
        docs = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        for node in self.nodes:
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and id(node) not in docs and len(PROSE_WORD.findall(text)) > 3:
                yield text

    def functions(self) -> Iterator[Function]:
        for owner in self.nodes:
            body = getattr(owner, "body", [])
            for node in body if isinstance(body, list) else []:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield self._function(node, is_method=isinstance(owner, ast.ClassDef))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, *, is_method: bool) -> Function:
        return Function(
            self.package,
            self.path,
            node.name,
            node.lineno,
            (node.end_lineno or node.lineno) - node.lineno + 1,
            any("property" in ast.unparse(decorator) for decorator in node.decorator_list),
            is_method,
            "" if node.returns is None else ast.unparse(node.returns),
            ast.get_docstring(node) or "",
        )


def read_modules(tree: Path) -> list[Module]:
    """Read every module of src/elastane, and of the folders beside it."""
    found = []
    source = tree / "src/elastane"
    for path in sorted(source.rglob("*.py")):
        package = path.relative_to(source).parts[0] if path.parent != source else "elastane"
        found.append(Module(package, str(path.relative_to(tree)), path.read_text()))
    for folder in ("tests", "benchmarks", "examples", "tools"):
        paths = sorted((tree / folder).rglob("*.py"))
        found += [Module(folder, str(path.relative_to(tree)), path.read_text()) for path in paths]
    return found


def is_source(module: Module) -> bool:
    return module.path.startswith("src/")


def is_participle(function: Function) -> bool:
    """Tell whether a bare participle names a public function that returns no bool; ignore properties."""
    words = function.name.split("_")
    if len(words) > 1 or function.name.startswith("_") or function.is_property:
        return False
    word = words[0]
    if function.returns == "bool":
        return False
    return word in PARTICIPLES or (word.endswith("ed") and word not in VERBS_IN_ED)


def begins_with_verb(docstring: str) -> bool:
    """Tell whether the first word is a verb of `tests/house/verbs.txt`, as `find` or as `finds`."""
    first = re.match(r"[A-Za-z]+", docstring)
    if first is None:
        return False
    word = first.group().lower()
    bases = {word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word)}
    return bool(bases & VERBS)


def find_homonyms(modules: list[Module], kind: type | tuple[type, ...]) -> dict[str, set[str]]:
    """Map each public name that two or more modules define to these modules."""
    places: dict[str, set[str]] = defaultdict(set)
    for module in filter(is_source, modules):
        for node in module.tree.body:
            if isinstance(node, kind) and not node.name.startswith("_"):  # type: ignore[attr-defined]
                places[node.name].add(module.path)  # type: ignore[attr-defined]
    allowed = {"main", "upgrade", "downgrade"}
    return {name: found for name, found in places.items() if len(found) > 1 and name not in allowed}


def find_aliases(module: Module) -> Iterator[str]:
    """Yield our own imports under another name; `import x as x` is a re-export."""
    for node in module.nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "elastane":
            for alias in node.names:
                if alias.asname and alias.asname != alias.name:
                    names = f"{alias.name} as {alias.asname}"
                    yield f"{module.path}:{node.lineno}: from {node.module} import {names}"


def package_of(path: str) -> str:
    parts = path.split("/")
    return parts[2] if len(parts) > 3 else "elastane"


@dataclass(frozen=True)
class Breach:
    """A place that breaks a rule."""

    rule: str
    package: str
    place: str


def find_all(tree: Path, modules: list[Module]) -> dict[str, dict[str, list[str]]]:
    """Return all places of a tree and its modules that break a rule: rule to package to places."""
    source = list(filter(is_source, modules))
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for breaches in (
        *(check_prose(module) for module in modules),
        *(check_aliases(module) for module in modules),
        *(check_functions(module) for module in source),
        check_homonyms(source, "classes of one name", ast.ClassDef),
        check_homonyms(source, "functions of one name", (ast.FunctionDef, ast.AsyncFunctionDef)),
        check_documents(tree),
    ):
        for breach in breaches:
            found[breach.rule][breach.package].append(breach.place)
    return {rule: dict(packages) for rule, packages in found.items()}


def check_words(package: str, path: str, text: str, rule: str = "words") -> Iterator[Breach]:
    for match in PERSONS.finditer(text):
        yield Breach(rule, package, f"{path}: {match.group()}: {cut_around(text, match)}")
    for match in PHRASES.finditer(text):
        yield Breach("phrases", package, f"{path}: {match.group()}: {cut_around(text, match)}")


def check_prose(module: Module) -> Iterator[Breach]:
    for text in (*module.comments, *module.docstrings()):
        yield from check_words(module.package, module.path, text)
    if is_source(module):
        for text in module.strings():
            yield from check_words(module.package, module.path, text, "words in strings")


def check_aliases(module: Module) -> Iterator[Breach]:
    for place in find_aliases(module):
        yield Breach("aliases", module.package, place)


def check_functions(module: Module) -> Iterator[Breach]:
    for function in module.functions():
        place = f"{module.path}:{function.line} {function.name}"
        if is_participle(function):
            yield Breach("participles", module.package, place)
        is_noun = function.is_property or function.name.startswith("__")
        if function.docstring and not is_noun and not begins_with_verb(function.docstring):
            summary = function.docstring.splitlines()[0]
            yield Breach("docstrings without a verb", module.package, f"{place}: {summary}")


def check_homonyms(modules: list[Module], rule: str, kind: type | tuple[type, ...]) -> Iterator[Breach]:
    for name, places in find_homonyms(modules, kind).items():
        for package in {package_of(place) for place in places}:
            yield Breach(rule, package, f"{name}: {', '.join(sorted(places))}")


def check_documents(tree: Path) -> Iterator[Breach]:
    for path in sorted([*tree.glob("*.md"), *(tree / "docs").rglob("*.md")]):
        yield from check_words("docs", str(path.relative_to(tree)), path.read_text())


def cut_around(text: str, match: re.Match[str]) -> str:
    """Return the words around a match, on one line."""
    return " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())


def count(found: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, int]]:
    """Turn places into numbers: package to rule to count."""
    counts: dict[str, dict[str, int]] = defaultdict(dict)
    for rule, packages in sorted(found.items()):
        for package, places in packages.items():
            counts[package][rule] = len(places)
    return dict(counts)


def read_limits() -> dict[str, dict[str, int]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(LIMITS.glob("*.json"))}


def lower(counts: dict[str, dict[str, int]], *, first: bool = False) -> None:
    """Lower limits to the counts of today; a rule without breaches has no limit."""
    limits = read_limits()
    for package in {*counts, *limits}:
        old, new = limits.get(package, {}), counts.get(package, {})
        kept = {rule: number if first else min(number, old.get(rule, 0)) for rule, number in new.items()}
        path = LIMITS / f"{package}.json"
        if any(kept.values()):
            path.write_text(json.dumps({r: n for r, n in sorted(kept.items()) if n}, indent=2) + "\n")
        else:
            path.unlink(missing_ok=True)


def per_thousand(texts: Iterator[str]) -> tuple[float, int]:
    """Return the words of `PERSONS` per thousand words, and the number of all words."""
    words = hits = 0
    for text in texts:
        words += len(PROSE_WORD.findall(text))
        hits += sum(found.lower() != "what is" for found in PERSONS.findall(text))
    return 1000 * hits / max(1, words), words


def build_language_table(tree: Path, found: dict[str, dict[str, list[str]]]) -> list[str]:
    """Return the rows of a table of the rules of language: each with its count."""
    modules = read_modules(tree)
    source = list(filter(is_source, modules))
    prose, words = per_thousand(text for m in source for text in (*m.comments, *m.docstrings()))
    strings, _ = per_thousand(text for m in source for text in m.strings())
    paths = [*tree.glob("*.md"), *(tree / "docs").rglob("*.md")]
    docs, doc_words = per_thousand(path.read_text() for path in paths)
    texts = "".join(module.text for module in modules)
    noqa = Counter(
        code
        for codes in re.findall(r"# noqa: ([A-Z0-9, ]+)", texts)
        for code in re.findall(r"[A-Z]+\d+", codes)
    )
    rows = [
        ("words for persons per 1,000 words of docstrings and comments", f"{prose:.2f} of {words:,}"),
        ("the same of errors, help and other strings", f"{strings:.2f}"),
        ("the same of README and docs", f"{docs:.2f} of {doc_words:,}"),
        ("public classes with one name in two modules", len(find_homonyms(modules, ast.ClassDef))),
        (
            "public functions with one name in two modules",
            len(find_homonyms(modules, (ast.FunctionDef, ast.AsyncFunctionDef))),
        ),
        ("bare participles as names of public functions", total(found, "participles")),
        ("docstrings of functions that begin with no verb", total(found, "docstrings without a verb")),
        ("imports of ours under another name", total(found, "aliases")),
        ("noqa", f"{sum(noqa.values())}: " + ", ".join(f"{code} {n}" for code, n in noqa.most_common(6))),
        ("lines of tests", f"{count_lines([m for m in modules if m.package == 'tests']):,}"),
    ]
    return ["| of all | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]


def build_shape_table(tree: Path) -> list[str]:
    """Return the rows of a table of the shape of each package: sizes as median, 90th percentile and largest.

    There is no limit: one that many touch exactly measures nothing. Reviews compare with the last release.
    """
    modules = [module for module in read_modules(tree) if is_source(module)]
    importers = count_importers(modules)
    packages = sorted({module.package for module in modules})
    head = (
        "package",
        "files",
        "lines",
        "statements",
        "lines of a file",
        "of a function",
        "methods of a class",
    )
    rows = [(*head, "one importer, below 80 lines"), ("---", *["--:"] * len(head))]
    for package in (*packages, ""):
        part = [module for module in modules if package in ("", module.package)]
        sizes = {module.path: module.text.count("\n") for module in part}
        small = [path for path, size in sizes.items() if size < 80 and importers[path] == 1]
        row = (
            f"`{package}`" if package else "all",
            len(part),
            f"{sum(sizes.values()):,}",
            f"{sum(map(count_statements, part)):,}",
            describe_sizes(sizes.values()),
            describe_sizes(function.lines for module in part for function in module.functions()),
            describe_sizes(count_methods(node) for module in part for node in module.nodes),
            len(small),
        )
        rows.append(tuple(map(str, row)))
    return [f"| {' | '.join(row)} |" for row in rows]


def describe_sizes(numbers: Iterable[int]) -> str:
    found = sorted(filter(None, numbers)) or [0]
    return f"{found[len(found) // 2]}, {found[len(found) * 9 // 10]}, {found[-1]}"


def count_methods(node: ast.AST) -> int:
    if not isinstance(node, ast.ClassDef):
        return 0
    return sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)


def count_statements(module: Module) -> int:
    """Return the number of statements that are neither imports nor texts that stand alone."""
    return sum(
        isinstance(node, ast.stmt)
        and not isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in module.nodes
    )


def count_importers(modules: list[Module]) -> Counter[str]:
    """Return how many modules import each one, by path."""
    paths = {name_of(module.path): module.path for module in modules}
    found: Counter[str] = Counter()
    for module in modules:
        imported = set()
        for node in module.nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= (inner & paths.keys()) or {node.module}
        found.update(paths[name] for name in imported if name in paths and paths[name] != module.path)
    return found


def name_of(path: str) -> str:
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def keep(tables: list[str]) -> None:
    """Write the tables into the page of measures, as those of the present version."""
    text = PAGE.read_text()
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    sections[elastane.__version__] = "\n" + "\n".join(tables) + "\n\n"
    head = text[: text.index("\n## ")] if "\n## " in text else text.rstrip() + "\n"
    newest = sorted(sections, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    body = "".join(f"## {version}\n{sections[version]}" for version in newest)
    PAGE.write_text(f"{head}\n{body}".rstrip() + "\n")


def total(found: dict[str, dict[str, list[str]]], rule: str) -> int:
    return sum(map(len, found.get(rule, {}).values()))


def count_lines(modules: list[Module]) -> int:
    return sum(module.text.count("\n") for module in modules)


def main() -> None:
    """Print the table, or list places or lower limits, as the options say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="the working tree to measure")
    parser.add_argument("--list", metavar="PACKAGE", help="print each place of a package that breaks a rule")
    parser.add_argument("--lower", action="store_true", help="lower the limits to the counts of today")
    parser.add_argument("--keep", action="store_true", help=f"write the tables into {PAGE.name}, too")
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    found = find_all(options.tree, read_modules(options.tree))
    if options.list:
        for rule, packages in sorted(found.items()):
            for place in packages.get(options.list, []):
                print(f"{rule}: {place}")
    elif options.lower or options.first:
        lower(count(found), first=options.first)
    else:
        shape = build_shape_table(options.tree)
        tables = [*shape, "", *build_language_table(options.tree, found)]
        print("\n".join(tables))
        if options.keep:
            keep(tables)


if __name__ == "__main__":
    main()
