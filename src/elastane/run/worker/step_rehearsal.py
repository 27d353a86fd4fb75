"""The rehearsal of a step: a microbatch that warms the process up and checks the script's loop.

A worker may compute any microbatch, and some of them twice, because others may die. So the loop over a step
must compute the same for the same microbatch each time, and change only gradients and buffers. At the
beginning of a run the rehearsal computes the microbatch twice, with another one between, and compares all
results: a value that the loop stores for a microbatch, and reads for others, shows only after another one.
"""

import msgspec
import torch
import xxhash

from elastane.common.errors import BadInput
from elastane.run.nouns.spec import Probe
from elastane.run.worker.finished.environment import describe_machine
from elastane.run.worker.losses import build_no_microbatch_error, build_unused_microbatch_error
from elastane.run.worker.state.change_detector import digest_tensor
from elastane.run.worker.state.gradients import Gradients
from elastane.run.worker.state.module_attributes import ModuleAttributes, is_opaque
from elastane.run.worker.state.plain_data import is_same
from elastane.run.worker.state.training_state import TrainingState, build_inside_step_error
from elastane.run.worker.step_record import check_unused_names, find_differing_value


class _Pass(msgspec.Struct, frozen=True):
    """The results of one pass over the microbatch.

    Args:
        loss: the bits of the loss.
        gradients: the digest of each parameter's gradient.
        attributes: the attributes of the modules, after the pass.
        caches: the buffers that are not persistent or not averaged, after the pass.
        logged: the values that the script has logged.
    """

    loss: str
    gradients: tuple[str, ...]
    attributes: ModuleAttributes
    caches: dict[str, torch.Tensor]
    logged: dict[str, float]


class StepRehearsal:
    """Passes over a microbatch, and over another one between, that leave no trace.

    Args:
        compared: the passes must agree bit for bit.
        probed: the bits of the first pass are compared with those of other machines.
    """

    def __init__(self, state: TrainingState, gradients: Gradients, *, compared: bool, probed: bool) -> None:
        self._state, self._gradients, self._compared, self._probed = state, gradients, compared, probed
        self._attributes = ModuleAttributes(state.model)
        self._caches = state.replicated.untrained.copy_buffers()
        self._content = state.digest_content() if compared or probed else {}
        self._versions = state.read_versions()
        self._passes: list[_Pass] = []
        # Before a pass over the other microbatch; None: the pass is not one.
        self._before: tuple[ModuleAttributes, dict[str, torch.Tensor]] | None = None
        self._loss = ""
        self._logged: dict[str, float] = {}
        self._fingerprints: tuple[str, ...] = ()

    def begin(self, *, between: bool = False) -> None:
        """Begin a pass.

        Args:
            between: it is over another microbatch, is not compared, and leaves no trace in the model.
        """
        model, untrained = self._state.model, self._state.replicated.untrained
        self._before = (ModuleAttributes(model), untrained.copy_buffers()) if between else None
        self._gradients.forget()
        self._loss = ""
        self._logged = {}

    def log(self, values: dict[str, float]) -> None:
        """Take values of the microbatch, which do not go to the ledger.

        Raises:
            BadInput: a name has a value already.
        """
        check_unused_names(self._logged, values)
        self._logged |= values

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of the microbatch; its gradients are not summed.

        Raises:
            BadInput: the microbatch has had its backward pass.
        """
        if self._loss:
            raise build_no_microbatch_error()
        self._loss = float(loss.detach()).hex()
        self._gradients.backward(loss)
        needed = self._compared or (self._probed and not self._passes)
        self._fingerprints = self._gradients.compute_fingerprints() if needed else ()
        # As in a step: the script must not change gradients, and zero_grad does no harm.
        self._gradients.mark_consumed()

    def end(self) -> None:
        """End a pass.

        Raises:
            BadInput: the pass had no backward pass, or changed state that must not change inside a step.
        """
        if not self._loss:
            raise build_unused_microbatch_error()
        state = self._state
        changed_names = state.replicated.untrained.find_changed(caches=False)
        content = state.digest_content() if self._compared else {}
        changed_names += [name for name, digest in content.items() if digest != self._content.get(name)]
        if changed_names:
            raise build_inside_step_error(changed_names[0])
        self._gradients.refuse_late_gradients()
        state.check_versions(self._versions)
        state.replicated.restore_flags()
        fingerprints, self._fingerprints = self._fingerprints, ()
        self._gradients.forget()
        if self._before is not None:
            attributes, caches = self._before
            attributes.restore()
            state.replicated.untrained.restore_buffers(caches)
            state.buffers.restore()
            return
        if self._compared and not any(fingerprints):
            raise BadInput(
                "the loss depends on no parameter that the optimizer trains",
                means="the first microbatch gave no gradient to any parameter, so nothing would be trained",
                do="compute the loss with the model that you passed to run.prepare, and build the optimizer "
                "with model.parameters()",
            )
        caches = state.replicated.untrained.copy_buffers()
        attributes = ModuleAttributes(state.model)
        self._passes.append(_Pass(self._loss, fingerprints, attributes, caches, self._logged))
        state.buffers.restore()

    def build_probe(self, part: int) -> Probe | None:
        """Return the bits of the first pass, to compare with those of other machines; None: not wanted.

        Args:
            part: the number of the microbatch; sites with data of their own compute different ones.
        """
        if not self._probed:
            return None
        first = self._passes[0]
        caches = sorted(self._caches.items())
        values = msgspec.json.encode(
            (part, sorted(self._content.items()), [(name, digest_tensor(tensor)) for name, tensor in caches])
        )
        # A rehearsal has no step of the optimizer, so compare square roots too: Adam takes them.
        roots = digest_tensor(torch.linspace(0.01, 1, 256).sqrt())
        return Probe(
            values=xxhash.xxh3_128_hexdigest(values),
            result=xxhash.xxh3_128_hexdigest(msgspec.json.encode((first.loss, first.gradients, roots))),
            machine=describe_machine(),
        )

    def leave_no_trace(self) -> None:
        """Restore everything that the passes have changed.

        Raises:
            BadInput: two passes over the same microbatch differed.
        """
        first, last = self._passes[0], self._passes[-1]
        if self._compared:
            self._compare(first, last)
        state = self._state
        changed = last.attributes.find_changed(since=self._attributes)
        self._attributes.restore()
        state.replicated.untrained.restore_buffers(self._caches)
        state.replicated.exclude_attributes(changed)
        state.replicated.untrained.remember()

    def _compare(self, first: _Pass, last: _Pass) -> None:
        if first.loss != last.loss or first.gradients != last.gradients:
            values = f"{float.fromhex(first.loss or '0')!r} and {float.fromhex(last.loss or '0')!r}"
            difference = f"losses of {values}" if first.loss != last.loss else "different gradients"
            raise BadInput(
                f"the same microbatch, computed twice, gave {difference}",
                means="the loop over a step, or the dataset, has a state or a random generator of its own, "
                "so the result would depend on which microbatches a worker computes",
                do="compute each microbatch from its data and the model alone; draw from the global "
                "generators of torch, Python or NumPy; keep state in buffers or, between steps, in run.keep",
            )
        if (name := find_differing_value(first.logged, last.logged)) is not None:
            raise BadInput(
                f"the same microbatch, computed twice, logged different values of {name}",
                means="the ledger would depend on which worker computed it, and when",
                do="log values that depend on the microbatch and the model only; the ledger has the times "
                "of each step",
            )
        differing = last.attributes.find_changed(since=first.attributes)
        names = [".".join(filter(None, key)) for key, value in differing.items() if not is_opaque(value)]
        caches = first.caches
        names += [name for name, now in last.caches.items() if not is_same(now, caches.get(name))]
        if names:
            raise BadInput(
                f"{names[0]} differed after the same microbatch was computed twice",
                means="it counts, collects or averages over microbatches, of which each worker has others",
                do="register it as a persistent buffer (register_buffer) of floating point or int64: the "
                "run takes the mean of a buffer over all microbatches of a step; keep records outside "
                "the model",
            )
