"""An Elastane program that starts coordinators and fork servers through the session's warm process.

Arguments: the module with its ``main``, the command of ``warm_client.py``, ``--``, and the program's options.
"""

import sys
from importlib import import_module

from elastane.agent import agent
from elastane.agent.processes import Commands

if __name__ == "__main__":
    module, end = sys.argv[1], sys.argv.index("--")
    client = tuple(sys.argv[2:end])
    commands = Commands((*client, "coordinator"), (*client, "fork-server"))
    sys.argv[1:] = sys.argv[end + 1 :]
    agent.Commands = lambda: commands
    import_module(module).main()
