"""The first lines of the ``elastane`` command, also for ``python -m elastane``."""

import sys

JOIN = ["join", "-"]
"""The words with which engines start agents."""


def begin_command() -> None:
    """Run the command; a machine that joins begins to import torch before all else."""
    if sys.argv[1:] == JOIN:
        from elastane.common.permissions import narrow_umask
        from elastane.run.agent.head_start import begin_head_start

        # Its workers have the umask with which it begins.
        narrow_umask()
        begin_head_start()
    from elastane.cli.main import main

    main()


if __name__ == "__main__":
    begin_command()
