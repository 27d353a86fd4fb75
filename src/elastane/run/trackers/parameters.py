"""The parameters of a run in trackers, and its identity there."""

import secrets

import msgspec

from elastane.common.atomic_file import replace_file
from elastane.common.errors import BadInput
from elastane.common.untrusted_data import Decoder, Malformed
from elastane.run.nouns.rundir import RunDir
from elastane.run.nouns.spec import RunRecord
from elastane.run.trackers.tracker import TrackedRun

LARGEST_BYTES = 1 << 10
FIXED = ("script", "module", "virtual_ranks", "convergence", "numerics", "seed", "threads")
"""Fields of the spec that stay the same from the first attempt to the last."""
LEFT_OUT = ("copies", "versions")


class TrackedIdentity(msgspec.Struct, frozen=True):
    """``trackers.json``."""

    id: str


_decode = Decoder[TrackedIdentity](TrackedIdentity, at_most_bytes=LARGEST_BYTES)


def claim_identity(run_dir: RunDir) -> str:
    """Return the id of the run, which its first tracker process has drawn.

    Raises:
        BadInput: the file is damaged.
        OSError: it can be neither read nor written.
    """
    try:
        found = _decode(run_dir.files.read(run_dir.trackers.identity, LARGEST_BYTES)).id
        if not found.isalnum():
            raise BadInput(
                f"{run_dir.trackers.identity} is damaged", do="remove it; trackers get the run anew"
            )
    except FileNotFoundError:
        found = secrets.token_hex(8)
        # Before anything has this id: after a power cut another one would begin the run again.
        replace_file(run_dir.trackers.identity, msgspec.json.encode(TrackedIdentity(found)), durable=True)
    except Malformed as error:
        raise BadInput(
            f"{run_dir.trackers.identity} is damaged: {error}", do="remove it; trackers get the run anew"
        ) from error
    return found


def describe_tracked_run(run_dir: RunDir, record: RunRecord) -> TrackedRun:
    """Return the run as trackers see it.

    Raises:
        BadInput: the file with its id is damaged.
        OSError: that file can be neither read nor written.
    """
    return TrackedRun(
        id=claim_identity(run_dir),
        name=record.spec.name,
        tensorboard=run_dir.trackers.tensorboard,
        mlflow=run_dir.trackers.mlflow,
        wandb=run_dir.trackers.wandb,
        parameters=list_parameters(record),
    )


def list_parameters(record: RunRecord) -> dict[str, str]:
    """Return the settings and pinned facts of a run as texts."""
    spec, pinned = record.spec, record.pinned
    found: dict[str, object] = {name: getattr(spec, name) for name in FIXED}
    found["args"] = " ".join(spec.args)
    if pinned is not None:
        found |= {
            name: value for name, value in msgspec.structs.asdict(pinned).items() if name not in LEFT_OUT
        }
        found |= {f"version/{name}": version for name, version in pinned.versions.items()}
    return {name: str(value) for name, value in found.items() if value not in (None, "")}
