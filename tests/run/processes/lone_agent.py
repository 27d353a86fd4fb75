"""An agent in its own process, for a test that kills it.

Arguments: the run directory, the command of ``warm_client.py``, ``--``, the script and its arguments.
"""

import asyncio
import sys
from pathlib import Path

from elastane.run.agent.agent import Agent
from elastane.run.agent.processes import Commands
from elastane.run.attempts.run_directory import claim_run_directory
from elastane.run.nouns.spec import RunSpec


def main() -> None:
    end = sys.argv.index("--")
    root, client, (script, *args) = Path(sys.argv[1]), sys.argv[2:end], sys.argv[end + 1 :]
    spec = RunSpec(name="lone", script=script, args=tuple(args), start=2)
    with claim_run_directory(spec, root) as files:
        asyncio.run(Agent(files, spec, Commands((*client, "coordinator"), (*client, "fork-server"))).run())


if __name__ == "__main__":
    main()
