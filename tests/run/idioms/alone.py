"""The training of an idiom in this process, as under plain ``python``."""

import warnings
from dataclasses import dataclass, field

import elastane
from elastane.run.nouns.records import Digest
from elastane.run.nouns.spec import RunSpec
from elastane.run.worker import worker_settings

from .catalogue import Idiom


@dataclass
class Trained:
    """The results of a training.

    Args:
        losses: the losses of all steps, in hexadecimal.
        prints: the lines that the script printed.
        digest: the digest of the state after the last step.
    """

    losses: list[str] = field(default_factory=list)
    prints: list[str] = field(default_factory=list)
    digest: Digest | None = None


def train(idiom: Idiom, variant: str = "", **wishes: object) -> Trained:
    """Train alone; ``wishes`` are fields of `RunSpec`.

    Raises:
        ElastaneError: the idiom is refused.
    """
    worker_settings._settings = worker_settings.WorkerSettings(
        spec=RunSpec(name="alone", script="", **wishes)
    )
    run = elastane.join()
    trained = Trained()
    steps = run.steps

    def observe_steps(*args, **options):
        for step in steps(*args, **options):
            yield step
            trained.losses.append(step.loss.hex())

    run.steps = observe_steps
    run.print = lambda *values: trained.prints.append(" ".join(map(str, values)))
    # In a run, warnings of torch go to the worker's log.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        idiom(run, variant)
    trained.digest = run.digest
    return trained
