"""Train the job with Elastane in rounds of inner steps; ``--virtual-ranks`` of them."""

import argparse

import elastane

import workload


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", required=True)
    parser.add_argument("--steps", type=int, required=True, help="rounds")
    parser.add_argument("--virtual-ranks", type=int, required=True)
    parser.add_argument("--inner-steps", type=int, required=True)
    parser.add_argument("--microbatch", type=int, required=True, help="sequences of an inner step of a rank")
    parser.add_argument("--wire", required=True)
    parser.add_argument("--group", type=int, required=True)
    parser.add_argument("--delay", type=int, required=True)
    options = parser.parse_args()
    size = workload.SIZES[options.size]
    run = elastane.join()
    model = workload.GPT(size)
    run.prepare(model, workload.make_optimizer(model), outer=elastane.outer.Nesterov(lr=0.7, momentum=0.9))
    for round_ in run.rounds(
        workload.Tokens(size.context),
        inner_steps=options.inner_steps,
        ranks=options.virtual_ranks,
        global_batch=options.virtual_ranks * options.microbatch,
        until=options.steps,
        wire=options.wire,
        group=options.group,
        delay=options.delay,
    ):
        for step in round_:
            for inputs, targets in step:
                step.backward(workload.compute_loss(model, inputs, targets))


if __name__ == "__main__":
    main()
