"""Elastic training for PyTorch: workers join, leave and die without a stop or a change of the trained bytes.

A training script begins with ``elastane.join()``; see `elastane.run.worker.session`. That module is loaded on
first use, so ``import elastane`` (and the command line, the coordinator and the agent) never imports torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elastane.run.worker import outer as outer
    from elastane.run.worker.early_stopping import EarlyStopping as EarlyStopping
    from elastane.run.worker.privacy import Privacy as Privacy
    from elastane.run.worker.session import Run as Run
    from elastane.run.worker.session import join as join
    from elastane.run.worker.split_adamw import SplitAdamW as SplitAdamW

__version__ = "0.1.0"
__all__ = ["EarlyStopping", "Privacy", "Run", "SplitAdamW", "join", "outer"]


def __dir__() -> list[str]:
    """Return the names of this module, those that are loaded on first use included."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    if name in __all__:
        from elastane.run.worker import early_stopping, outer, privacy, session, split_adamw

        if name == "outer":
            return outer
        homes = {"EarlyStopping": early_stopping, "Privacy": privacy, "SplitAdamW": split_adamw}
        return getattr(homes.get(name, session), name)
    raise AttributeError(f"module 'elastane' has no attribute {name!r}")
