"""A trainer in the manner of nanoGPT: one file, settings as globals, DDP only if RANK is set, ``ckpt.pt``.

It keeps the global batch by dividing its gradient accumulation by the number of processes, and saves when it
gets SIGTERM.
"""

import math
import os
import signal
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from journal import Journal
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

out_dir = Path(sys.argv[1])
max_iters = int(sys.argv[2])
eval_interval = 10
batch_size, block_size = 2, 16
gradient_accumulation_steps = 4
learning_rate = 1e-2

ddp = int(os.environ.get("RANK", "-1")) != -1
if ddp:
    init_process_group(backend="gloo")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert gradient_accumulation_steps % world_size == 0
    gradient_accumulation_steps //= world_size
else:
    rank, world_size = 0, 1
master_process = rank == 0
torch.manual_seed(1337 + rank)

stopping = False


def request_stop(_number, _frame):
    global stopping  # noqa: PLW0603 - as people have it
    stopping = True


signal.signal(signal.SIGTERM, request_stop)


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens, targets):
        hidden = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(block_size)
        hidden = hidden + self.attention(hidden, hidden, hidden, attn_mask=mask, need_weights=False)[0]
        return functional.cross_entropy(self.head(hidden).view(-1, 64), targets.reshape(-1))


def get_batch(step, micro):
    generator = torch.Generator().manual_seed(step * 100 + micro * world_size + rank)
    starts = torch.randint(1000, (batch_size, 1), generator=generator)
    tokens = (starts + torch.arange(block_size + 1)) % 64
    return tokens[:, :-1], tokens[:, 1:]


journal = Journal(out_dir)
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iter_num = 0
checkpoint = out_dir / "ckpt.pt"
if checkpoint.exists():
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    iter_num = state["iter_num"]
raw_model = model
if ddp:
    model = DistributedDataParallel(model)
journal.note(f"start {rank}/{world_size} from {iter_num}")


def save():
    if master_process:
        state = {"model": raw_model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}
        torch.save(state, out_dir / "ckpt.new")
        (out_dir / "ckpt.new").replace(checkpoint)


while iter_num < max_iters:
    for micro in range(gradient_accumulation_steps):
        last = micro == gradient_accumulation_steps - 1
        with nullcontext() if last or not ddp else model.no_sync():
            loss = model(*get_batch(iter_num, micro)) / gradient_accumulation_steps
            loss.backward()
    optimizer.param_groups[0]["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * iter_num / max_iters))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    journal.wait_at(iter_num, until=lambda: stopping)
    # All processes must leave after the same iteration.
    wanted = torch.tensor(float(stopping))
    if ddp:
        torch.distributed.all_reduce(wanted)
    if master_process:
        journal.note(f"iteration {iter_num} of {world_size}")
    iter_num += 1
    if wanted.item():
        save()
        sys.exit(0)
    if iter_num % eval_interval == 0:
        save()
save()
if ddp:
    destroy_process_group()
