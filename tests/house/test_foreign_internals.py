"""The private names of libraries that Elastane uses; the installed versions must have them."""

import ast
import atexit
import functools
import importlib
import inspect
import multiprocessing
import os
import re
import threading
import weakref
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy
import torch
from torch._guards import CompileContext
from torch.distributed.checkpoint.filesystem import _StorageInfo

from . import lightning_internals

SOURCE = Path(__file__).parents[2] / "src/elastane"

OURS = {"_arenas", "_parameter_views", "_values"}
"""Attributes that two classes of one module share."""
DOCUMENTED = {(os, "_exit")}


def make_stepped_optimizer():
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter])
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    parameter.grad = torch.ones(1)
    optimizer.step()
    return optimizer


def make_used_scaler():
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    return scaler


def make_row():
    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        return connection.execute(sqlalchemy.text("select 1 as one")).one()


def make_fused_optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], fused=True)


def make_compiled_module():
    return torch.compile(torch.nn.Linear(1, 1), backend="eager")


def import_fsdp(name):
    return importlib.import_module(f"torch.distributed.fsdp._fully_shard.{name}")


def list_attributes(*classes):
    """Return an object with the private names that the methods of these classes define or set."""
    names = {name for cls in classes for name in dir(cls)}
    for cls in classes:
        names.update(re.findall(r"self\.(_\w+)(?:: [^=]+)? = ", inspect.getsource(cls)))
    return SimpleNamespace(**dict.fromkeys(names))


@functools.cache
def list_trainer_attributes():
    return list_attributes(importlib.import_module("transformers").Trainer)


@functools.cache
def list_trl_attributes():
    trl = importlib.import_module("trl")
    attributes = [vars(list_attributes(cls)) for cls in (trl.SFTTrainer, trl.DPOTrainer)]
    return SimpleNamespace(**dict.fromkeys(attributes[0].keys() & attributes[1].keys()))


def list_fsdp_attributes():
    module = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_state")
    return list_attributes(module.FSDPState)


TRAINER_NAMES = """
    _clip_grad_norm _evaluate _finalize_training _get_num_items_in_batch _get_output_dir
    _globalstep_last_logged _init_training_state _initial_global_step _initial_num_input_tokens_seen
    _inner_training_loop _load_best_model _maybe_log_save_evaluate _prepare_inputs _save_checkpoint
    _save_optimizer_and_scheduler _save_rng_state _save_scaler _total_loss_scalar _tr_loss
    _track_num_input_tokens
"""


INTERNALS: dict[str, tuple[str, Callable[[], object]]] = {
    "_buffers": ("torch", lambda: torch.nn.Linear(1, 1)),
    "_modules": ("torch", lambda: torch.nn.Linear(1, 1)),
    "_parameters": ("torch", lambda: torch.nn.Linear(1, 1)),
    "_non_persistent_buffers_set": ("torch", lambda: torch.nn.Linear(1, 1)),
    "_version": ("torch", lambda: torch.ones(1)),
    "_C": ("torch", lambda: torch),
    "_current_graph_task_id": ("torch", lambda: torch._C),
    "_foreach_add": ("torch", lambda: torch),
    "_foreach_add_": ("torch", lambda: torch),
    "_foreach_copy_": ("torch", lambda: torch),
    "_foreach_mul_": ("torch", lambda: torch),
    "_foreach_norm": ("torch", lambda: torch),
    "_make_subclass": ("torch", lambda: torch.Tensor),
    "_opt_called": ("torch", make_stepped_optimizer),
    "_scale": ("torch", make_used_scaler),
    "_per_optimizer_states": ("torch", make_used_scaler),
    "_get_fsdp_state": ("torch", lambda: importlib.import_module("torch.distributed.fsdp").FSDPModule),
    "_fsdp_param_group": ("torch", lambda: import_fsdp("_fsdp_state").FSDPState),
    "_sharded_param_data": ("torch", lambda: list_attributes(import_fsdp("_fsdp_param").FSDPParam)),
    "_worker_info": ("torch", lambda: torch.utils.data._utils.worker),
    "_mapping": ("sqlalchemy", make_row),
    "_optimizer_step_pre_hooks": ("torch", make_stepped_optimizer),
    "_optimizer_step_post_hooks": ("torch", make_stepped_optimizer),
    **dict.fromkeys(TRAINER_NAMES.split(), ("transformers", list_trainer_attributes)),
    "_metrics": ("trl", list_trl_attributes),
    "_total_train_tokens": ("trl", list_trl_attributes),
    "_shutdown": ("python", lambda: threading),
    "_run_exitfuncs": ("python", lambda: atexit),
    "_registry": ("python", lambda: weakref.finalize),
    "_popen": ("python", multiprocessing.Process),
    # Only by name, in a string, or through self:
    "_orig_mod": ("torch", make_compiled_module),
    "_local_tensor": ("torch", lambda: importlib.import_module("torch.distributed.tensor").DTensor),
    "_fsdp_param_groups": ("torch", list_fsdp_attributes),
    "_has_compatible_shallow_copy_type": ("torch", lambda: torch),
    "_need_device_dtype_check_for_fused": ("torch", make_fused_optimizer),
    "_step_supports_amp_scaling": ("torch", make_fused_optimizer),
    "_warned_capturable_if_run_uncaptured": ("torch", make_stepped_optimizer),
    **{name: ("lightning", make) for name, make in lightning_internals.ATTRIBUTES.items()},
}
"""Each attribute, the library that has it, and an object that shows it."""

MODULES = {
    "hashlib": {"_Hash"},  # a type only
    "ray._private": {"state"},  # of the Ray cluster's Python: tests/cluster/engines/test_real_ray.py uses it
    "torch._guards": {"CompileContext"},
    "torch.distributed.fsdp._fully_shard._fsdp_api": {"ReduceScatter"},
    "torch.distributed.tensor.placement_types": {"_StridedShard"},
    "torch.utils.data": {"_utils"},
    **lightning_internals.IMPORTS,
}
"""Imports of names, or from modules, that begin with an underscore."""


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def is_own(node):
    """Return whether an expression is the object of the method around it, or that of its superclass."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


@functools.cache
def parse_sources():
    return [ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))]


def test_the_list_of_private_attributes_is_complete():
    used = {
        node.attr
        for tree in parse_sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and is_private(node.attr) and not is_own(node.value)
    }
    assert used - OURS - {name for _, name in DOCUMENTED} - INTERNALS.keys() == set()


def test_the_list_of_private_imports_is_complete():
    used = {
        (node.module, alias.name)
        for tree in parse_sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__"
        for alias in node.names
        if is_private(alias.name) or any(is_private(part) for part in node.module.split("."))
    }
    assert used == {(module, name) for module, names in MODULES.items() for name in names}


@pytest.mark.parametrize("library", sorted({library for library, _ in INTERNALS.values()}))
def test_each_private_attribute_exists(library):
    missing = [
        name for name, (owner, make) in INTERNALS.items() if owner == library and not hasattr(make(), name)
    ]
    assert not missing, (
        f"{library} {version(library)} has no {', '.join(missing)} any more: find the replacements in the "
        "library, and change each use in src/elastane"
    )


def test_the_handle_that_silences_torch_functions_is_there():
    assert torch._C.DisableTorchFunctionSubclass, f"torch {version('torch')} has renamed it"


def test_the_compile_context_can_be_read():
    assert CompileContext.try_get() is None


def test_metadata_of_distributed_checkpoints_has_the_fields_that_we_write():
    fields = set(_StorageInfo.__dataclass_fields__)
    assert {"relative_path", "offset", "length"} <= fields, f"torch {version('torch')} has {fields}"


def test_a_scaler_keeps_its_findings_where_the_run_puts_them():
    scaler = make_used_scaler()
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.grad = torch.full((1,), float("inf"))
    optimizer = torch.optim.SGD([parameter])
    scaler.unscale_(optimizer)
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    assert found[torch.device("cpu")].item() == 1, f"torch {version('torch')} keeps it elsewhere: {found}"
