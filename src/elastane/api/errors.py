"""Every error a user may meet.

ElastaneError
├── BadInput            the request cannot be met; nothing was changed       (exit code 2)
├── NoSuchRun           no run of that name, or it is not running            (exit code 3)
├── RunFailed           the training itself failed; the traceback is shown   (exit code 1)
└── StateLost           every copy of some block died at once                (exit code 1)
"""


class ElastaneError(Exception):
    """What happened, what it means, what to do."""

    exit_code = 1

    def __init__(self, what: str, *, means: str = "", do: str = "") -> None:
        self.what, self.means, self.do = what, means, do
        lines = [what]
        if means:
            lines.append(f"  means: {means}")
        if do:
            lines.append(f"  do:    {do}")
        super().__init__("\n".join(lines))


class BadInput(ElastaneError):
    exit_code = 2


class NoSuchRun(ElastaneError):
    exit_code = 3


class RunFailed(ElastaneError):
    exit_code = 1


class StateLost(ElastaneError):
    exit_code = 1
