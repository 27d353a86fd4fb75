"""Train the job with Elastane; workers of several processes divide the model, as in ``train_hsdp.py``."""

import os

import elastane
import torch.distributed as dist

import job
import ticks
import workload


def main() -> None:
    parsed = job.parse_job()
    size = workload.SIZES[parsed.size]
    run = elastane.join()
    tick_writer = ticks.TickWriter(parsed.out)
    model = workload.GPT(size)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
        workload.divide(model)
    model, _ = run.prepare(model, workload.make_optimizer(model))
    for step in run.steps(
        workload.Tokens(size.context),
        global_batch=parsed.virtual_ranks * size.microbatch,
        microbatch=size.microbatch,
        until=f"{parsed.steps} steps",
    ):
        for inputs, targets in step:
            tick_writer.record_begin(step.number)
            step.backward(workload.compute_loss(model, inputs, targets))
        tick_writer.record_end(step.number)


if __name__ == "__main__":
    main()
