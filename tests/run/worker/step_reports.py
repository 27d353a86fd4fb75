"""Reports of steps, as a worker makes them."""

from elastane.run.nouns import control
from elastane.run.nouns.records import LedgerLine, Samples


def build_report(step: int) -> control.StepReport:
    samples = Samples(epoch=0, start=0, stop=1, count=1, checksum="")
    line = LedgerLine(
        step=step, generation=1, workers={0: ((0, 1),)}, samples=samples, loss=1.0, loss_hex=1.0.hex(),
        time=1.0, seconds={},
    )  # fmt: skip
    return control.StepReport(worker=0, line=line, step_s=0.1, healthy=True)
