"""An Elastane program that takes fork servers from the session's warm process, so that runs begin at once.

Arguments: the module with its ``main``, the fork server's command, ``--``, and the arguments of the program.
"""

import sys
from importlib import import_module

from elastane.agent import agent
from elastane.agent.processes import Commands

if __name__ == "__main__":
    module, end = sys.argv[1], sys.argv.index("--")
    commands = Commands(fork_server=tuple(sys.argv[2:end]))
    sys.argv[1:] = sys.argv[end + 1 :]
    agent.Commands = lambda: commands
    import_module(module).main()
