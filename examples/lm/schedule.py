"""The learning rate over a run: a linear warm-up, then half a cosine down to a tenth."""

import math
from collections.abc import Callable


def warmup_cosine(warmup: int, steps: int) -> Callable[[int], float]:
    """Return the factor of the learning rate by step, 0 to 1, for ``torch.optim.lr_scheduler.LambdaLR``.

    Args:
        warmup: steps of the warm-up, at least 1.
        steps: of the whole run.
    """

    def factor(step: int) -> float:
        climb = min(1.0, (step + 1) / warmup)
        fall = 0.55 + 0.45 * math.cos(math.pi * min(1.0, step / steps))
        return climb * fall

    return factor
