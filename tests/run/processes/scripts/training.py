"""The small training of most tests, with everything that could make bits differ.

Dropout, batch norm, AdamW in two groups, clipping, a schedule, bf16 autocast, epochs with a short last step.
"""

import argparse
import functools
import time

import faults
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import elastane
from elastane.run.worker import assembly
from elastane.run.worker.state.placement import Mirrored

LENGTH, GLOBAL_BATCH, MICROBATCH = 52, 16, 2
EVALUATED_STEP = 7

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--paced-from", type=int, default=1 << 30, help="each step waits for its file gate-STEP")
parser.add_argument("--fault", action="append", default=[], help="WORKER:STEP:MOMENT[:SIGNAL]")
parser.add_argument("--hold", action="append", default=[], help="MOMENT[:STEP]")
parser.add_argument("--seconds", type=float, default=0.0, help="extra seconds of each virtual rank")
parser.add_argument("--device", default="cpu")
parser.add_argument("--mirrored", action="store_true", help="train as on a device, whatever the device is")
parser.add_argument("--rooms", action="store_true", help="peers read the memory of a mirrored model")
parser.add_argument("--no-rooms-of", type=int, help="this worker has no such memory")
parser.add_argument("--late", type=int, help="this worker waits for the file late before it joins")
parser.add_argument("--keep-at", type=int, help="the script asks for a checkpoint after this step")
parser.add_argument("--apply-late", help="WORKER:STEP; this worker waits for the file apply")
parser.add_argument("--corrupt", help="WORKER:STEP; after it this worker's optimizer state is wrong")
parser.add_argument("--corrupt-values", help="WORKER:STEP; from it on a value is wrong")
parser.add_argument(
    "--flip", help="WORKER:STEP[:once]; then a bit of the gradients that are checked is wrong"
)
parser.add_argument("--load-late", type=int, help="this worker waits for the file load")
parser.add_argument("--withhold-from", type=int, help="the first machine reports no step from this one on")
parser.add_argument("--unfit", help="the script cannot be imported on this machine")
parser.add_argument("--record-sent-sums", action="store_true")
parser.add_argument("--record-read-sums", action="store_true")
parser.add_argument("--evaluate-at-end", action="store_true", help="evaluate after the last step, too")
parser.add_argument("--lose-gathered", action="store_true", help="the tensors of the evaluation are lost")
parser.add_argument("--inner-steps", type=int, help="train in rounds of this many inner steps")
parser.add_argument("--wire", default="full", help="the format in which rounds cross the wire")
parser.add_argument("--inner-state", default="fresh", help="the state with which virtual ranks begin")
parser.add_argument("--delay", type=int, default=0, help="exchange differences one round later")
parser.add_argument("--group", type=int, default=1, help="the virtual ranks that are rounded together")
parser.add_argument("--sites", help="the sites with data of their own, such as eu,us")
parser.add_argument("--absent", default="wait", help="what a round does without a site")
parser.add_argument("--shorter", type=int, help="this worker finds a sample less at its sites")
parser.add_argument("--renew-bytes", type=int, help="with one key of an encrypted connection")
parser.add_argument("--apart", action="store_true", help="no worker shares memory, as if on other machines")
options = parser.parse_args()

faults.record_work()
if options.unfit is not None:
    faults.fail_import(options.unfit)
if options.record_sent_sums:
    faults.record_sent_sums()
if options.record_read_sums:
    faults.record_read_sums()
if options.lose_gathered:
    faults.lose_gathered_tensors()
if options.withhold_from is not None:
    faults.withhold_reports(options.withhold_from)
if options.renew_bytes is not None:
    faults.renew_keys(options.renew_bytes)
if options.apart:
    faults.set_apart()
for fault in options.fault:
    faults.arm(fault)
for hold in options.hold:
    faults.hold(hold)
if options.mirrored or options.rooms:
    assembly.choose_placement = Mirrored
if options.rooms:
    # A job that brings its code has no such module.
    import rooms

    rooms.install(without=options.no_rooms_of)
if options.load_late is not None:
    faults.delay_loading(options.load_late)
if options.corrupt is not None:
    faults.corrupt(*map(int, options.corrupt.split(":")))
if options.corrupt_values:
    faults.corrupt_values(*map(int, options.corrupt_values.split(":")))
if options.apply_late is not None:
    faults.delay_applying(*map(int, options.apply_late.split(":")))
if options.late is not None:
    faults.wait_if_worker(options.late, "late")

faults.pace(options.paced_from)
run = elastane.join()
model = nn.Sequential(
    nn.Linear(12, 256, bias=False),
    nn.LayerNorm(256) if options.delay else nn.BatchNorm1d(256),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(256, 500),
    nn.Tanh(),
    nn.Linear(500, 4),
).to(options.device)
optimizer = torch.optim.AdamW(
    [{"params": model[:5].parameters(), "weight_decay": 0.1}, {"params": model[5:].parameters(), "lr": 2e-3}],
    lr=1e-2,
)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.1 * step))
outer = elastane.outer.Nesterov(lr=0.7, momentum=0.9) if options.inner_steps else None
model, optimizer = run.prepare(
    model,
    optimizer,
    scheduler=scheduler,
    clip_grad_norm=0.5,
    outer=outer,
    inner_state=options.inner_state,
)

if options.flip is not None:
    faults.flip_bits(model[4].weight, *options.flip.split(":"), rounds=bool(options.inner_steps))

generator = torch.Generator().manual_seed(1)
inputs = torch.randn(LENGTH, 12, generator=generator)
data = TensorDataset(inputs, inputs[:, :4].argmax(1))


def evaluate():
    score = run.evaluate(data, microbatch=10)
    model.eval()
    with torch.no_grad():
        for batch, targets in score:
            predicted = model(batch.to(options.device)).argmax(1).cpu()
            score.add(right=(predicted == targets).sum(), seen=len(targets))
            score.outputs.add(predicted=predicted)
    model.train()
    run.print("evaluated", score.sums["right"], score.sums["seen"])
    run.print("predicted", *torch.cat(score.outputs["predicted"]).tolist())


def bind_data(sites):
    """Return the data of each site: every n-th sample, and more of the first sites."""

    def open_part(number):
        faults.note_opening(sites[number])
        stop = LENGTH - len(sites) if options.shorter == faults.get_worker() else LENGTH
        return TensorDataset(*(tensor[number : stop : len(sites)] for tensor in data.tensors))

    return {site: functools.partial(open_part, number) for number, site in enumerate(sites)}


def begin_steps():
    if not options.inner_steps:
        return run.steps(data, global_batch=GLOBAL_BATCH, microbatch=MICROBATCH, until=options.steps)
    bound = {"absent": options.absent} if options.sites else {}
    return run.rounds(
        bind_data(options.sites.split(",")) if options.sites else data,
        **bound,
        inner_steps=options.inner_steps,
        ranks=GLOBAL_BATCH // MICROBATCH,
        global_batch=GLOBAL_BATCH,
        until=options.steps,
        wire=options.wire,
        group=options.group,
        delay=options.delay,
    )


for step in begin_steps():
    for inner in step if options.inner_steps else (step,):
        for batch, targets in inner:
            if options.seconds:
                time.sleep(options.seconds * faults.get_slowdown())
            with torch.autocast(options.device, dtype=torch.bfloat16):
                loss = functional.cross_entropy(model(batch.to(options.device)), targets.to(options.device))
            inner.backward(loss)
    with torch.no_grad():
        # A decay of the script's own, after each step: all that follows needs the values after it.
        for parameter in model.parameters():
            parameter.mul_(0.999)
    if step.number == EVALUATED_STEP:
        evaluate()
    if step.number == options.keep_at:
        run.checkpoint(asked_for=1.5, unknown=float("nan"))
if options.evaluate_at_end:
    evaluate()
if run.digest is not None:
    run.print("digest", run.digest.parameters, run.digest.optimizer)
