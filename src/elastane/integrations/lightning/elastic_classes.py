"""The Trainer and the Fabric of Lightning with ``strategy="elastane"`` as their default."""

from typing import Any

import lightning.pytorch as pl
from lightning.fabric import Fabric

from elastane.common.errors import BadInput

STRATEGY = "elastane"


class ElasticLightningTrainer(pl.Trainer):
    """A ``Trainer`` of Lightning that trains in a run; ``strategy=`` may still choose another way.

    Args:
        options: those of ``lightning.Trainer``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"strategy": STRATEGY} | options))

    def fit(self, model: Any, *args: Any, **options: Any) -> None:
        """Train a module; see ``lightning.Trainer``.

        Raises:
            BadInput: the module is one of the package ``pytorch_lightning``.
        """
        if any(kind.__module__.startswith("pytorch_lightning.") for kind in type(model).__mro__):
            raise BadInput(
                f"{type(model).__name__} is a module of the package pytorch_lightning",
                means="its classes are others than those of the package lightning, which Elastane trains",
                do="write import lightning.pytorch as pl instead of import pytorch_lightning as pl",
            )
        super().fit(model, *args, **options)


class ElasticFabric(Fabric):
    """A ``Fabric`` of Lightning that trains in a run; ``strategy=`` may still choose another way.

    Args:
        options: those of ``lightning.Fabric``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**({"strategy": STRATEGY} | options))
