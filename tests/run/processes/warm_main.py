"""An Elastane program that starts coordinators and fork servers through the session's warm process.

Arguments: the module with its ``main``, the seconds of silence that a run of this program allows, the command
of ``warm_client.py``, ``--``, and the program's options. Without a command the program starts its processes
as it does for users. Other machines and later attempts read the silence in ``run.json``.
"""

import sys
from functools import partial
from importlib import import_module

from elastane.run.agent import agent
from elastane.run.agent.processes import Commands
from elastane.run.nouns.silence_limits import SILENCE_S
from elastane.run.nouns.spec import RunSpec

if __name__ == "__main__":
    module, silence_s, end = sys.argv[1], float(sys.argv[2]), sys.argv.index("--")
    if client := tuple(sys.argv[3:end]):
        commands = Commands((*client, "coordinator"), (*client, "fork-server"))
        agent.Commands = lambda: commands
    if silence_s != SILENCE_S:
        import_module("elastane.cli.runs.run_spec").RunSpec = partial(RunSpec, silence_s=silence_s)
    sys.argv[1:] = sys.argv[end + 1 :]
    import_module(module).main()
