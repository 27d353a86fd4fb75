"""``python -m elastane.lives`` with warm servers from the session's warm process.

Arguments: the warm server's command, ``--``, and those of a life.
"""

import sys

from elastane.agent import agent
from elastane.agent.processes import Commands
from elastane.lives.__main__ import main

if __name__ == "__main__":
    border = sys.argv.index("--")
    commands = Commands(spares=tuple(sys.argv[1:border]))
    sys.argv[1:] = sys.argv[border + 1 :]
    agent.Commands = lambda: commands
    main()
