"""Find names in backticks that no longer exist.

`python -m tools.find_stale_names` prints each place; `tests/house/test_language.py` allows none. It looks at
four kinds of text in backticks, in the docstrings and comments of src/elastane:

- A plain name, such as `read_config`: it must be in the same file, or some file must define it as a module,
  class, function, method, attribute, field or constant, import it, or have it as a string (a key, a value).
  Arguments and local variables of other files do not count. `camelCase` in JSON is `snake_case` in the code.
  A single letter is part of a formula.
- A dotted name, such as `Module.docstrings` or `elastane.run`: each part must exist, and a class or module of
  ours must define its member.
- An option, such as `--workers`: some file must have it in a string, or an argument or field `workers`.
- A file, such as `docs/cli.md` or `plan.py`: it must exist.

In the pages of `OUR_PAGES` it looks at all of them. In other pages it looks at files, options and names that
begin with `elastane`, because these have many names of other projects. CHANGELOG.md has the names of former
versions.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.measure_house import ROOT, Module, is_source, read_modules

FOREIGN = frozenset(
    {
        "AVX2",
        "Module",
        "MultiStepLR",
        "RLIMIT_NOFILE",
        "SWALR",
        "VACUUM",
        "betas",
        "camelCase",
        "create_connection",
        "flatten_optimizer_state_dict",
        "fully_shard",
        "float32",
        "from_pretrained",
        "get_optimizer_state_dict",
        "get_worker_info",
        "h100",
        "logging.py",
        "save_pretrained",
        "set_optimizer_state_dict",
        "snake_case",
        "xxh128sum",
    }
)
"""Names of libraries, of programs and of the field that the code itself does not contain."""

EXAMPLES = frozenset({"data.site", "node.drained", "record.py"})
"""Names that a program puts together, and those of a design that was rejected."""

FOREIGN_ROOTS = ("horovod", "hvd", "math", "msgspec", "object", "torch")
"""Their members are not looked up."""

OBJECTS = ("run", "step")
"""Objects of a training script with the names of modules."""

IN_BACKTICKS = re.compile(r"(`+)([^`\n]+)\1")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
OPTION = re.compile(r"--([a-z][a-z-]*)")
FILE = re.compile(r"[\w./-]+\.(?:py|md|toml)")
FORMULA = re.compile(r"[A-Za-z]")
PLACEHOLDER = re.compile(r"\b(PARAMETER|ENTRY)\b")
BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
OUR_PAGES = ("ARCHITECTURE.md", "docs/architecture/", "docs/protocol.md", "docs/concepts/")
FOLDERS = ("src", "docs", "tests", "tools", "benchmarks", "examples")


@dataclass
class Index:
    """What names in backticks can mean.

    Args:
        names: what some file defines, and the names of Python itself.
        arguments: of all functions; those of commands become options.
        strings: all string constants except docstrings.
        paths: files, relative to the tree.
        modules: the names that each module defines or imports, by the module's full name in parts.
        classes: the names that each class defines or inherits from a class of ours.
    """

    names: set[str] = field(default_factory=lambda: set(dir(builtins)))
    arguments: set[str] = field(default_factory=set)
    strings: set[str] = field(default_factory=set)
    paths: list[Path] = field(default_factory=list)
    modules: dict[tuple[str, ...], set[str]] = field(default_factory=dict)
    classes: dict[str, set[str]] = field(default_factory=dict)

    def has_name(self, name: str) -> bool:
        snake = re.sub(r"(?<=[a-z0-9])[A-Z]", lambda capital: f"_{capital[0].lower()}", name)
        return name in self.names or name in self.strings or (name[0].islower() and snake in self.names)

    def has_option(self, name: str) -> bool:
        option = re.compile(rf"(?<![\w-])--{name}(?![\w-])")
        fields = self.arguments | self.names
        return name.replace("-", "_") in fields or any(map(option.search, self.strings))

    def has_file(self, name: str) -> bool:
        wanted = Path(name).parts
        return any(path.parts[-len(wanted) :] == wanted for path in self.paths)

    def find_modules(self, name: tuple[str, ...]) -> list[set[str]]:
        """Return the names in each module with a full name that ends with these parts."""
        return [names for full, names in self.modules.items() if full[-len(name) :] == name]


def build_index(modules: Iterable[Module], root: Path = ROOT) -> Index:
    """Collect the definitions of all modules, and the files of the tree."""
    index = Index(paths=[path.relative_to(root) for path in root.glob("*.*")])
    for folder in FOLDERS:
        index.paths += [path.relative_to(root) for path in (root / folder).rglob("*.*")]
    bases: dict[str, set[str]] = {}
    for module in modules:
        index.names.update(list_definitions(module.nodes), list_top_names(module.tree))
        index.arguments.update(node.arg for node in module.nodes if isinstance(node, ast.arg))
        index.strings.update(list_strings(module))
        add_module(index, module)
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                index.classes.setdefault(node.name, set()).update(list_definitions(ast.walk(node)))
                bases.setdefault(node.name, set()).update(map(ast.unparse, node.bases))
    for name in bases:
        for ancestor in list_ancestors(name, bases):
            index.classes[name] |= index.classes.get(ancestor, set())
    return index


def add_module(index: Index, module: Module) -> None:
    """Add what a module defines, and the module itself to its package."""
    _, *name = Path(module.path).with_suffix("").parts
    if name[-1] == "__init__":
        name.pop()
    index.names.update(name)
    index.modules.setdefault(tuple(name), set()).update(list_top_names(module.tree))
    for length in range(1, len(name)):
        index.modules.setdefault(tuple(name[:length]), set()).add(name[length])


def list_ancestors(name: str, bases: dict[str, set[str]]) -> set[str]:
    """Return the classes that a class inherits from, as written, without arguments of types."""
    found: set[str] = set()
    pending = [name]
    while pending:
        for base in bases.get(pending.pop(), ()):
            plain = base.split("[")[0].split(".")[-1]
            if plain not in found:
                found.add(plain)
                pending.append(plain)
    return found


def list_definitions(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield classes, functions, attributes that are set, and fields; without local variables."""
    for node in nodes:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
        if isinstance(node, ast.Module | ast.ClassDef):
            yield from list_constants(node)


def list_constants(owner: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Yield the names that a module or the body of a class assigns."""
    for node in owner.body:
        if isinstance(node, ast.Assign):
            targets = (part for target in node.targets for part in ast.walk(target))
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def list_top_names(tree: ast.Module) -> Iterator[str]:
    """Yield what a module defines and imports, also for types only."""
    yield from list_constants(tree)
    guarded = [node for guard in tree.body if isinstance(guard, ast.If) for node in guard.body]
    for node in (*tree.body, *guarded):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)


def list_strings(module: Module) -> Iterator[str]:
    docstrings = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


NAMING = frozenset({"name", "id", "attr", "arg", "asname"})
"""The attributes of a node of a syntax tree that hold a name."""


def list_identifiers(module: Module) -> Iterator[str]:
    """Yield every name that the code of a module contains."""
    for node in module.nodes:
        held = vars(node)
        for attribute in held.keys() & NAMING:
            value = held[attribute]
            if isinstance(value, str):
                yield from value.split(".")


def list_texts(module: Module) -> Iterator[str]:
    """Yield the comments, and the docstrings, of attributes too."""
    yield from module.comments
    for node in module.nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield text


def is_name(text: str) -> bool:
    return NAME.fullmatch(text.removesuffix("()")) is not None


def is_stale(text: str, own: set[str], index: Index) -> bool:
    """Tell whether a text in backticks is the name of something that does not exist.

    Args:
        text: without the backticks.
        own: the names in the code of the same file.
        index: the names of the tree.
    """
    name = text.removesuffix("()")
    if name in FOREIGN or name in EXAMPLES or name in index.strings:
        return False
    if FORMULA.fullmatch(name) or PLACEHOLDER.search(name):
        return False
    if option := OPTION.fullmatch(name):
        return not index.has_option(option[1])
    if FILE.fullmatch(name):
        return not index.has_file(name)
    if not is_name(name):
        return False
    parts = name.split(".")
    if parts[0] in FOREIGN_ROOTS:
        return False
    if not all(part in own or part in FOREIGN or index.has_name(part) for part in parts):
        return True
    return len(parts) > 1 and not has_member(parts, own, index)


def has_member(parts: list[str], own: set[str], index: Index) -> bool:
    """Tell whether each part of a dotted name is a member of the part before it, where that is known."""
    if parts[0] in own - index.classes.keys() or parts[0] in OBJECTS:
        return True
    for length in range(len(parts) - 1, 0, -1):
        if modules := index.find_modules(tuple(parts[:length])):
            if not any(parts[length] in names for names in modules):
                return False
            parts = parts[length:]
            break
    return len(parts) == 1 or parts[0] not in index.classes or parts[1] in index.classes[parts[0]]


def find_stale_names(modules: list[Module], root: Path = ROOT) -> list[str]:
    """Return the path and the text of each stale name in modules and documents."""
    index = build_index(modules, root)
    found = []
    for module in modules:
        own = set(list_identifiers(module))
        texts = [text for prose in list_texts(module) for _, text in IN_BACKTICKS.findall(prose)]
        found += [f"{module.path}: {text}" for text in texts if is_stale(text, own, index)]
    for path in sorted([*root.glob("*.md"), *(root / "docs").rglob("*.md")]):
        if path.name != "CHANGELOG.md":
            texts = [text for _, text in IN_BACKTICKS.findall(BLOCK.sub("", path.read_text()))]
            page = str(path.relative_to(root))
            if not page.startswith(OUR_PAGES):
                texts = [text for text in texts if text.startswith("elastane") or not is_name(text)]
            found += [f"{page}: {text}" for text in texts if is_stale(text, set(), index)]
    return found


if __name__ == "__main__":
    print("\n".join(find_stale_names(list(filter(is_source, read_modules(ROOT))))))
