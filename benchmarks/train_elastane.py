"""Train the job with Elastane."""

import elastane

import job
import ticks
import workload


def main() -> None:
    asked = job.parsed()
    size = workload.SIZES[asked.size]
    run = elastane.join()
    tick = ticks.TickWriter(asked.out)
    model = workload.GPT(size)
    model, _ = run.prepare(model, workload.optimizer_for(model))
    for step in run.steps(
        workload.Tokens(size.context),
        global_batch=asked.virtual_ranks * size.microbatch,
        microbatch=size.microbatch,
        until=f"{asked.steps} steps",
    ):
        for inputs, targets in step:
            tick.begun(step.number)
            step.backward(workload.loss_of(model, inputs, targets))
        tick.done(step.number)


if __name__ == "__main__":
    main()
