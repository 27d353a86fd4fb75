"""The record of a step: the values that a script logs and the files that it writes.

Values logged in the inner loop belong to microbatches; their mean over the samples of the step is part of the
outcome that all workers agree on. Values logged between two steps are the same on every worker: each vote
carries their digest. The ledger's line of the step has both, so each step has them exactly once, even if it
was computed several times.
"""

from collections.abc import Mapping

from elastane.common.errors import BadInput
from elastane.run.nouns.checkpoints import WrittenFile
from elastane.run.worker.state.json_state import digest_text, to_json_text
from elastane.run.worker.values import MOST_NAMES

WEIGHT = "weight of "
"""Names of values are identifiers, so no value has the name of another value's weight."""


def weigh_values(values: Mapping[str, float], samples: int) -> dict[str, float]:
    """Return the microbatch's terms of the sums of its step: each value times samples, and the samples."""
    sums = {name: value * samples for name, value in values.items()}
    return sums | {WEIGHT + name: float(samples) for name in values}


def compute_means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the mean over samples of each value that microbatches have logged."""
    return {
        name: sums[name] / weight
        for name in sums
        if not name.startswith(WEIGHT) and (weight := sums.get(WEIGHT + name, 0.0))
    }


class StepRecord:
    """The recorded values and files of the last step.

    Attributes:
        files: the files written through `run.artifact`, by name.
        digest: the digest of the values and files recorded between the steps, the same on every worker;
            empty: none.
    """

    def __init__(self) -> None:
        self.values: dict[str, float] = {}
        self.files: dict[str, WrittenFile] = {}
        self.digest = ""

    def begin(self, values: Mapping[str, float]) -> None:
        """Begin the record of a step with the means that its microbatches have logged."""
        self.values, self.files, self.digest = dict(values), {}, ""

    def log(self, values: Mapping[str, float]) -> None:
        """Add values of the step.

        Raises:
            BadInput: a name has a value already, or the step has too many values.
        """
        check_unused_names(self.values, values)
        if len(self.values) + len(values) > MOST_NAMES:
            raise BadInput(
                f"run.log was given more than {MOST_NAMES} values for one step",
                means="the ledger has all values of a step in one line",
                do="log fewer, for example their mean; write tables with run.artifact",
            )
        self.values.update(values)
        self._update()

    def add_file(self, name: str, written: WrittenFile) -> None:
        """Add a file of the step."""
        self.files[name] = written
        self._update()

    def _update(self) -> None:
        files = {name: written.checksum for name, written in self.files.items()}
        self.digest = digest_text(to_json_text([_to_hex(self.values), files]))


def find_differing_value(one: Mapping[str, float], other: Mapping[str, float]) -> str | None:
    """Return the first name with different values, or in one mapping only; None: the mappings are equal."""
    texts, other_texts = _to_hex(one), _to_hex(other)
    return next((name for name in sorted({*one, *other}) if texts.get(name) != other_texts.get(name)), None)


def _to_hex(values: Mapping[str, float]) -> dict[str, str]:
    """Return values as texts, so that a NaN equals another one."""
    return {name: value.hex() for name, value in values.items()}


def check_unused_names(known: Mapping[str, float], values: Mapping[str, float]) -> None:
    """Refuse a second value for a name."""
    name = next((name for name in values if name in known), None)
    if name is not None:
        raise BadInput(
            f"run.log was given {name} twice for the same step",
            means="a step has one value of each name, so one of the two would be lost",
            do="use two names, or log the mean of the values",
        )
