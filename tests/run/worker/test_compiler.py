"""Optimizers without torch's compiler, and with it once something loads it."""

import subprocess
import sys

import pytest

from elastane.run.worker.compiler import LARGE_PARTS, SIGNS, list_large_parts

WITHOUT_AND_WITH = """
import sys
import torch
from torch import optim
from elastane.run.worker.compiler import KEPT, METHODS, postpone_compiler

def train(optimizer_class, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = optimizer_class(model.parameters(), lr=0.1, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    return [parameter.detach().clone() for parameter in model.parameters()]

class Counting(optim.SGD):
    added = 0
    def add_param_group(self, group):
        self.added += 1
        super().add_param_group(group)

KINDS = [optim.AdamW, optim.Adam, optim.SGD, optim.RMSprop, optim.Adagrad, optim.NAdam, Counting]
postpone_compiler()
without = [train(kind) for kind in KINDS] + [train(optim.AdamW, differentiable=False, foreach=True)]
assert "torch._dynamo" not in sys.modules, "the compiler was loaded"

import elastane
run = elastane.join()
model = torch.nn.Linear(4, 4)
model, optimizer = run.prepare(model, optim.AdamW(model.parameters(), lr=0.1))
for step in run.steps([torch.ones(4)] * 8, global_batch=4, microbatch=2, until="1 epochs"):
    for inputs in step:
        step.backward(model(inputs).square().mean())
loaded = {"torch._dynamo", "sympy"} & set(sys.modules)
assert not loaded, f"a step loads {loaded}, and each worker takes that time when it joins"

import torch._dynamo
model = torch.nn.Linear(4, 4)
counting = Counting(model.parameters(), lr=0.1)
assert counting.added == 1
own = [vars(getattr(optim.Optimizer, name).__wrapped__).get(KEPT) for name in METHODS]
with_it = [train(kind) for kind in KINDS] + [train(optim.AdamW, differentiable=False, foreach=True)]
assert all(map(torch.equal, sum(without, []), sum(with_it, [])))
kept = [vars(getattr(optim.Optimizer, name).__wrapped__)[KEPT] for name in METHODS]
assert all("_dynamo" in form.__module__ or hasattr(form, "_torchdynamo_disable") for form in kept), kept
model(torch.ones(2, 4)).sum().backward()
torch.compile(counting.step, backend="eager")()
print("trained")
"""


def test_optimizers_train_the_same_without_the_compiler_and_torch_hides_them_from_it_once_it_is_there():
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_AND_WITH], capture_output=True, text=True, check=False
    )
    assert done.stdout == "trained\n", done.stderr


@pytest.mark.parametrize("sign", [sign.decode() for sign in SIGNS])
def test_a_script_that_names_the_compiler_needs_it(tmp_path, sign):
    script = tmp_path / "script.py"
    script.write_text(f"import torch\n\nmodel = {sign}(model)\n")
    assert list_large_parts(script) == LARGE_PARTS


def test_other_scripts_do_not_need_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import re\nimport torch\n\npattern = re.compile('checkpoint')\nrun.checkpoint()\n")
    assert list_large_parts(script) == list_large_parts(tmp_path / "missing.py") == ()
