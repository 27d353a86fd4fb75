"""Data without any file: text, conversations and preference pairs of Python's standard library.

The modules are those of `sys.stdlib_module_names`, so packages that are installed beside them do not matter.
"""

import ast
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput
from elastane.common.user_cache import find_cache, lock_for_one
from elastane.integrations.recipes.data.spec import Task

TEXT_BYTES, DOCUMENTED_BYTES = 2 << 20, 3 << 20
"""The size of the sample of modules: of text, which is tokenised in two seconds, and of all other tasks."""
LEFT_OUT = frozenset(
    {"antigravity", "distutils", "ensurepip", "idlelib", "lib2to3", "test", "this", "tkinter", "turtledemo"}
)
"""Modules that many installations lack, or that print when they are read as an example."""
SHORTEST_DOCSTRING, LONGEST_DOCSTRING = 20, 300
LEAST_WORDS = 5


def write_standard_library(task: Task) -> Path:
    """Return a jsonl file with the data of a task, which is in the cache from the first call on.

    The file has ``text`` for pretraining, ``messages`` for fine-tuning, and ``prompt``, ``chosen`` and
    ``rejected`` for preferences. It depends on the version of Python and on this module alone.

    Raises:
        BadInput: this Python has no source files.
    """
    modules = [
        (path.name, path.read_bytes().decode(errors="replace"))
        for path in _choose_modules(TEXT_BYTES if task == "pretrain" else DOCUMENTED_BYTES)
    ]
    # With this module itself: the file that another version has made of the same text is not used.
    maker = Path(__file__).read_text(encoding="utf-8")
    source = hashlib.sha256(f"{maker} {task} {json.dumps(modules)}".encode()).hexdigest()
    folder = find_cache("recipes")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"standard-library-{task}-{source[:16]}.jsonl"
    with lock_for_one(path.with_suffix(".lock")):
        if not path.exists():
            texts = [text for _, text in modules]
            rows = ({"text": text} for text in texts) if task == "pretrain" else _make_rows(texts, task)
            replace_file(path, "".join(json.dumps(row) + "\n" for row in rows).encode(), durable=True)
    return path


def _choose_modules(most_bytes: int) -> list[Path]:
    """Return a sample of modules of bounded size, chosen by digests of their names."""
    root = Path(sysconfig.get_path("stdlib"))
    found: dict[str, Path] = {}
    for name in sys.stdlib_module_names - LEFT_OUT:
        if not name.startswith("_"):
            files = [root / f"{name}.py", *(root / name).rglob("*.py")]
            found |= {str(file.relative_to(root)): file for file in files if file.is_file()}
    names = sorted(name for name in found if not {"test", "tests"} & set(Path(name).parts))
    chosen, size = [], 0
    for name in sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest()):
        size += found[name].stat().st_size
        if size > most_bytes:
            break
        chosen.append(name)
    if not chosen:
        raise BadInput(
            f"the standard library of this Python has no source files in {root}",
            means="a recipe without data trains on their text",
            do="name a file with text: data.path",
        )
    return [found[name] for name in sorted(chosen)]


def _make_rows(texts: list[str], task: Task) -> Iterator[dict[str, object]]:
    """Yield a question about each documented function; the answer is the first paragraph of its docstring."""
    seen = set[str]()
    for signature, answer in (pair for text in texts for pair in _find_functions(text)):
        question = f"What does {signature} do?"
        if question in seen:
            continue
        seen.add(question)
        if task == "finetune":
            yield {"messages": [_speak("user", question), _speak("assistant", answer)]}
        else:
            yield {
                "prompt": [_speak("user", question)],
                "chosen": [_speak("assistant", answer)],
                "rejected": [_speak("assistant", _shuffle(answer))],
            }


def _find_functions(text: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and (docstring := ast.get_docstring(node)):
            answer = " ".join(docstring.split("\n\n")[0].split())
            if (
                SHORTEST_DOCSTRING <= len(answer) <= LONGEST_DOCSTRING
                and len(set(answer.split())) >= LEAST_WORDS
            ):
                yield f"{node.name}({ast.unparse(node.args)})", answer


def _speak(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _shuffle(text: str) -> str:
    """Return the words in another order, which the words alone decide."""
    words = text.split()
    order = sorted(range(len(words)), key=lambda n: hashlib.sha256(f"{n} {words[n]}".encode()).digest())
    shuffled = [words[number] for number in order]
    return " ".join(shuffled if shuffled != words else words[1:] + words[:1])
