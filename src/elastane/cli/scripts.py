"""Lookup of training scripts and modules that users name."""

from pathlib import Path

from elastane.common.errors import BadInput
from elastane.common.safe_text import escape_line
from elastane.run.attempts.script_modules import find_module_file


def find_script(named: Path, *, module: bool, do: str = "check the path") -> Path:
    """Return the absolute path of the file to run, so that a worker that starts later finds it.

    With ``module``, as of ``-m``, ``named`` is the name of a module. ``do`` is the advice of the error.
    """
    check_text(str(Path.cwd()))
    if module:
        return find_module_file(str(named), Path.cwd())
    check_script(named, do)
    return named.resolve()


def check_text(*words: str) -> None:
    """Refuse words that cannot be stored as text, such as a name of a file in another encoding."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise BadInput(
                f"{escape_line(word)} is not UTF-8",
                means="the files of a run have the script and its arguments as UTF-8 text",
                do="rename the file or folder, or write the argument in UTF-8",
            ) from None


def check_script(script: Path, do: str = "check the path") -> None:
    """Check that a script is a readable file; ``do`` is the advice of the error if it is not."""
    check_text(str(script))
    if not script.exists():
        raise BadInput(f"there is no script {script}", do=do)
    if not script.is_file():
        raise BadInput(f"{script} is not a file", do="give the path of the Python script")
    try:
        script.open("rb").close()
    except OSError as error:
        raise BadInput(f"cannot read {script}: {error.strerror}") from error
