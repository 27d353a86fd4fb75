"""``python -c`` in a process that the warm process forks: arguments are the code, and those of the code."""

import sys


def main() -> None:
    code, *arguments = sys.argv[1:]
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})  # noqa: S102 - as python -c does
