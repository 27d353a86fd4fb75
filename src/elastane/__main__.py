"""The first lines of the ``elastane`` command, also for ``python -m elastane``."""

import sys

JOIN = ["join", "-"]
"""The words with which engines start agents."""


def main() -> None:
    """Run the command; a machine that joins begins to import torch before all else."""
    if sys.argv[1:] == JOIN:
        from elastane.run.agent.head_start import begin_head_start

        begin_head_start()
    from elastane.cli.main import main as run_command

    run_command()


if __name__ == "__main__":
    main()
