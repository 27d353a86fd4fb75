"""An idiom trained in this process, as plain ``python`` trains it."""

import warnings
from dataclasses import dataclass, field

import elastane
from elastane.api.records import Digest
from elastane.api.spec import RunSpec
from elastane.runtime import worker_settings

from .catalogue import Idiom


@dataclass
class Trained:
    """What came of a training.

    Args:
        losses: of all steps, in hexadecimal.
        said: what the script printed.
        digest: of the state after the last step.
    """

    losses: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    digest: Digest | None = None


def train(idiom: Idiom, variant: str = "", **wishes: object) -> Trained:
    """Train alone; ``wishes`` as in `RunSpec`.

    Raises:
        ElastaneError: the idiom is refused.
    """
    worker_settings._settings = worker_settings.WorkerSettings(
        spec=RunSpec(name="alone", script="", **wishes)
    )
    run = elastane.join()
    trained = Trained()
    steps = run.steps

    def observed(*args, **options):
        for step in steps(*args, **options):
            yield step
            trained.losses.append(step.loss.hex())

    run.steps = observed
    run.print = lambda *values: trained.said.append(" ".join(map(str, values)))
    # What torch warns of, scripts are warned of in their logs.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idiom(run, variant)
    trained.digest = run.digest
    return trained
