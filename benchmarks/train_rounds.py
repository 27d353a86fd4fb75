"""Train the job with Elastane in rounds of inner steps; ``--virtual-ranks`` of them."""

import elastane

import rounds_job
import ticks
import workload


def main() -> None:
    job = rounds_job.parse_job()
    size = workload.SIZES[job.size]
    tick_writer = ticks.TickWriter(job.out)
    run = elastane.join()
    model = workload.GPT(size)
    run.prepare(model, workload.make_optimizer(model), outer=elastane.outer.Nesterov(lr=0.7, momentum=0.9))
    for round_ in run.rounds(
        workload.Tokens(size.context),
        inner_steps=job.inner_steps,
        ranks=job.virtual_ranks,
        global_batch=job.virtual_ranks * job.microbatch,
        until=job.steps,
        wire=job.wire,
        group=job.group,
        delay=job.delay,
    ):
        for step in round_:
            # With a delay the number of the round is not known here.
            tick_writer.record_begin(rounds_job.UNKNOWN)
            for inputs, targets in step:
                step.backward(workload.compute_loss(model, inputs, targets))
        tick_writer.record_end(round_.number, len(round_.workers))


if __name__ == "__main__":
    main()
