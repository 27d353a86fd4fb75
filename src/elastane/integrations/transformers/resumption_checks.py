"""The refusal of a folder to resume from: a run resumes from its own checkpoints."""

from pathlib import Path

from transformers.trainer_utils import get_last_checkpoint

from elastane.common.errors import BadInput
from elastane.run.nouns.rundir import RunDir


def build_resumption_error(given: str | bool, output_dir: str | Path) -> BadInput:
    """Return the error for a Trainer that gets a folder to resume from.

    Args:
        given: the path of a folder; True: the newest checkpoint in ``output_dir``.
        output_dir: the folder of the Trainer's checkpoints.
    """
    found: object = given
    if given is True:
        found = get_last_checkpoint(str(output_dir)) if Path(output_dir).is_dir() else None
    if not found or not Path(str(found)).is_dir():
        missing = f"{output_dir} has no checkpoint" if given is True else f"{given} is not a folder"
        return BadInput(
            f"resume_from_checkpoint={given!r}: {missing}",
            means="there is nothing to resume from",
            do="remove resume_from_checkpoint, or correct the path",
        )
    if RunDir(Path(str(found))).ledger.is_file():
        return BadInput(
            f"resume_from_checkpoint={given!r} is the directory of a run",
            means="a run that resumes needs its ledger and its seed, too, and the command gives it both",
            do=f"elastane run --resume {found}",
        )
    return BadInput(
        f"resume_from_checkpoint={given!r} in a run that does not resume: {found}",
        means="a run counts steps and samples from its own first step, so it cannot continue in the "
        "middle of a training of transformers",
        do=f"to train on from its weights with a new schedule, use from_pretrained({str(found)!r}); "
        "to resume a run of Elastane: elastane run --resume NAME",
    )
