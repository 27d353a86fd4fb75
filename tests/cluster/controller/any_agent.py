"""Choose the kind of an attempt: training if the script of the job trains, otherwise a small one.

Arguments: the command of the fork server, ``--``, and the arguments of `elastane.run.attempts`.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    border = sys.argv.index("--")
    warm, (run_dir, *rest) = sys.argv[1:border], sys.argv[border + 1 :]
    # Without reading JSON: the process that is to replace this one should begin at once.
    trains = b'"script": "%s"' % bytes(HERE.parents[1] / "run" / "processes" / "scripts" / "training.py")
    if trains in (Path(run_dir) / "run.json").read_bytes():
        main_of = HERE.parents[1] / "run" / "processes" / "warm_main.py"
        # The run keeps its usual limit of silence.
        program = [str(main_of), "elastane.run.attempts.__main__", "3.0", *warm, "--"]
    else:
        program = [str(HERE / "small_agent.py")]
    os.execv(sys.executable, [sys.executable, "-P", *program, run_dir, *rest])  # noqa: S606


if __name__ == "__main__":
    main()
