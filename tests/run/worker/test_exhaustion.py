"""A resource is exhausted by Elastane, and the worker is replaced, or by the script, and the run fails."""

import errno
import os
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from elastane.common.errors import RunFailed, StorageError
from elastane.run.nouns.resources import FILE_DESCRIPTORS, MEMORY, RESOURCES, SHARED_MEMORY, THREADS
from elastane.run.worker.exhaustion import find_exhausted_resource, find_own_exhaustion, runs_script

CODE = """
def call(function, *arguments):
    return function(*arguments)
def raise_(error):
    raise error
def raise_from(error, cause):
    raise error from cause
"""


def build_module(name: str) -> ModuleType:
    """Return a module of this name, with functions that call others and raise errors."""
    module = ModuleType(name)
    # Frames know their module by its globals.
    exec(compile(CODE, f"{name}.py", "exec"), module.__dict__)  # noqa: S102
    return module


ELASTANE, TORCH, THREADING = (
    build_module("elastane.run.worker.links.mesh"),
    build_module("torch.storage"),
    build_module("threading"),
)
SCRIPT, VISION = build_module("__main__"), build_module("torchvision.datasets")
NO_DESCRIPTOR = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def catch_error(*modules: ModuleType, error: BaseException = NO_DESCRIPTOR) -> BaseException:
    """Return the error raised in the last of some modules, each of which calls the next one."""
    *callers, raiser = modules
    chain, arguments = raiser.raise_, (error.with_traceback(None),)
    for caller in reversed(callers):
        chain, arguments = caller.call, (chain, *arguments)
    with pytest.raises(type(error)) as info:
        chain(*arguments)
    return info.value


@pytest.mark.parametrize(
    ("modules", "is_own"),
    [
        ((SCRIPT, ELASTANE), True),
        ((SCRIPT, ELASTANE, THREADING), True),
        ((SCRIPT, ELASTANE, TORCH), True),
        ((ELASTANE, SCRIPT), False),
        ((ELASTANE, SCRIPT, TORCH), False),
        ((SCRIPT, THREADING), False),
        ((ELASTANE, VISION), False),
        ((ELASTANE, VISION, TORCH, THREADING), False),
    ],
)
def test_the_innermost_frame_outside_of_libraries_decides(modules, is_own):
    expected = FILE_DESCRIPTORS if is_own else None
    assert find_own_exhaustion(catch_error(*modules)) is expected


def test_errors_of_marked_functions_are_the_scripts():
    source = build_module("elastane.run.worker.data.batch_sources")
    source.call = runs_script(source.call)
    assert find_own_exhaustion(catch_error(SCRIPT, source, TORCH, error=MemoryError())) is None


@pytest.mark.parametrize(
    ("error", "resource"),
    [
        (OSError(errno.ENFILE, "x"), FILE_DESCRIPTORS),
        (OSError(errno.ENOMEM, "x"), MEMORY),
        (MemoryError(), MEMORY),
        (BlockingIOError(errno.EAGAIN, "x"), THREADS),
        (RuntimeError("can't start new thread"), THREADS),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."), MEMORY),
        (RuntimeError("unable to mmap 8 bytes from file </torch_1>: Cannot allocate memory (12)"), MEMORY),
        (OSError(errno.ENOSPC, "x"), SHARED_MEMORY),
        (OSError(errno.ENOSPC, "x", "/dev/shm/sem.1"), SHARED_MEMORY),  # noqa: S108
        (OSError(errno.ENOSPC, "x", "/data/run/model.safetensors"), None),
        (OSError(errno.ENOENT, "x"), None),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ZeroDivisionError(), None),
    ],
)
def test_an_error_tells_the_exhausted_resource(error, resource):
    assert find_exhausted_resource(error) is resource


def test_the_cause_of_an_elastane_error_counts():
    cause = catch_error(ELASTANE)
    with pytest.raises(StorageError) as info:
        ELASTANE.raise_from(StorageError("cannot read the checkpoint"), cause)
    assert find_own_exhaustion(info.value) is FILE_DESCRIPTORS
    with pytest.raises(RunFailed) as info:
        ELASTANE.raise_from(RunFailed("x"), ValueError())
    assert find_own_exhaustion(info.value) is None


def test_exit_codes_are_above_those_of_scripts():
    assert set(RESOURCES) == {171, 172, 173, 174}
    assert all(resource.do for resource in RESOURCES.values())


def test_a_thread_that_cannot_start_is_recognised():
    caller = build_module("elastane.run.worker.links.coordinator_link")
    before = threading.stack_size(1 << 46)
    try:
        with pytest.raises(RuntimeError) as info:
            caller.call(threading.Thread(target=print).start)
    finally:
        threading.stack_size(before)
    assert find_own_exhaustion(info.value) is THREADS


def test_every_function_that_runs_the_scripts_objects_is_marked():
    import elastane.run.worker.session
    from elastane.run.worker import exhaustion

    assert elastane.run.worker.session
    marked = {(Path(code.co_filename).stem, code.co_qualname) for code in exhaustion._runs_script.values()}
    assert marked >= {
        ("batch_sources", "MapBatchSource._load_samples"),
        ("batch_sources", "fetch_samples"),
        ("batch_sources", "load_in_order"),
        ("fingerprint", "digest_dataset"),
        ("streams", "_Shard.draw"),
        ("gradients", "Gradients.backward"),
        ("whole_optimizer", "WholeOptimizer.apply"),
        ("replicated_state", "ReplicatedState.step_schedule"),
    }
    assert "elastane.run.worker.exhaustion" in sys.modules
