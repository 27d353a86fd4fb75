"""Losses that a device still computes when the training thread goes on.

The loss of a microbatch arrives on the host when the kernels of its forward pass have run. If the training
thread waited for it, the thread could not queue further kernels meanwhile, and the device would wait for the
host. So another thread waits, and posts the result.
"""

import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from elastane.common.errors import RunFailed
from elastane.run.protocol import events
from elastane.run.protocol.messages import Leaf
from elastane.run.worker.losses import check_weight
from elastane.run.worker.reactor import Reactor, ReactorFailure
from elastane.run.worker.state.devices import LateNumber


class LateLoss(msgspec.Struct, frozen=True):
    """The loss of a microbatch as the script has given it, perhaps not on the host yet.

    Args:
        number: the loss.
        step: the number of the step.
        weight: the weight of a loss that is a sum; None: the loss is a mean over samples, or a term.
        by_samples: the loss is a mean, and its weight is the number of samples.
        term_of: the loss is a term of the loss of a step with this number of samples; None: it is that of
            its microbatch.
    """

    number: LateNumber
    step: int
    weight: float | LateNumber | None
    by_samples: bool
    term_of: int | None

    @property
    def has_arrived(self) -> bool:
        """The host can read it without waiting for a device."""
        return self.number.has_arrived and (
            not isinstance(self.weight, LateNumber) or self.weight.has_arrived
        )

    def put_into(self, leaf: Leaf) -> Leaf:
        """Return the leaf with the loss and the weight; waits for them.

        Raises:
            RunFailed: the loss is not finite.
            BadInput: the weight is not a finite number of at least 0.
        """
        value, weight = self.number.read(), self.weight
        if not math.isfinite(value):
            raise RunFailed(
                f"the loss of step {self.step}, virtual rank {leaf.virtual_rank} is {value}",
                means="the step was not committed, so the model is that of the step before",
                do="check the learning rate and this microbatch; the same seed gives the same step again",
            )
        if isinstance(weight, LateNumber):
            weight = check_weight(weight.read())
            assert not isinstance(weight, LateNumber), "the weight is on the host now"
        if self.by_samples:
            value, weight = value * leaf.samples, leaf.samples
        if self.term_of is not None:
            # The step's loss is the mean over samples of what its leaves carry.
            term = value * self.term_of / leaf.samples
            return msgspec.structs.replace(leaf, loss=term, weight=float(leaf.samples))
        if weight is None:
            return msgspec.structs.replace(leaf, loss=value, weight=float(leaf.samples))
        mean = value / weight if weight else 0.0
        return msgspec.structs.replace(leaf, loss=mean, weight=weight, weighted=True)


class ResultPoster:
    """Posts the results of the training thread to the reactor in their order, although losses are late.

    The sums of a virtual rank must not be announced before the reactor knows that all earlier ones are
    computed. So what follows a late loss waits for it, too.

    Args:
        reactor: receives the events.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._lock = threading.Lock()
        # Results that are not posted yet.
        self._waiting = 0
        self._thread: ThreadPoolExecutor | None = None

    def post(self, event: events.Event) -> None:
        """Post an event after all earlier ones; any thread may call this."""
        with self._lock:
            if not self._waiting:
                self._reactor.post_result(event)
                return
            self._queue(lambda: event)

    def post_leaf(self, leaf: Leaf, loss: LateLoss, build: Callable[[Leaf], events.Event]) -> None:
        """Post the event of a computed virtual rank when its loss has arrived.

        An error, such as an infinite loss, becomes the next directive of the training thread.

        Args:
            build: builds the event from the leaf with its loss.
        """
        with self._lock:
            self._queue(lambda: build(loss.put_into(leaf)))

    def _queue(self, build: Callable[[], events.Event]) -> None:
        self._waiting += 1
        if self._thread is None:
            # One thread, so that results keep their order.
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="elastane-losses")
        self._thread.submit(self._post_late, build)

    def _post_late(self, build: Callable[[], events.Event]) -> None:
        try:
            event = build()
        except BaseException as error:  # noqa: BLE001 - the training thread raises it
            self._reactor.directives.put(ReactorFailure(error))
            return
        with self._lock:
            self._reactor.post_late_result(event)
            self._waiting -= 1
