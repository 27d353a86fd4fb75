"""Lightning's ``strategy="elastane"``, for a Trainer and for Fabric; importing this module registers it.

The module also has every name of ``lightning``, with that strategy as the default of `Trainer` and `Fabric`.
So one changed import makes a script elastic::

    import elastane.integrations.lightning as L  # instead of: import lightning as L

The import also seeds the random generators as `elastane.join` does, so that the model which a script builds
next has the same initial values in every worker.
"""

from typing import Any

from elastane.common.extras import require_for_import

with require_for_import("lightning", "training with Lightning"):
    import lightning
    from lightning.fabric.strategies import STRATEGY_REGISTRY
    from lightning.pytorch.strategies import StrategyRegistry

    from elastane.integrations.lightning.fabric_strategy import ElastaneFabricStrategy, ElasticFabric
    from elastane.integrations.lightning.trainer_strategy import ElastaneStrategy, ElasticLightningTrainer

from elastane.run.worker import worker_settings
from elastane.run.worker.data.determinism import seed_everything

# Their names in Lightning.
Trainer, Fabric = ElasticLightningTrainer, ElasticFabric

__all__ = [
    "ElastaneFabricStrategy",
    "ElastaneStrategy",
    "ElasticFabric",
    "ElasticLightningTrainer",
    "Fabric",
    "Trainer",
]

DESCRIPTION = "Elastic training: workers join, leave and die"

StrategyRegistry.register("elastane", ElastaneStrategy, DESCRIPTION, override=True)
STRATEGY_REGISTRY.register("elastane", ElastaneFabricStrategy, DESCRIPTION, override=True)
seed_everything(worker_settings.get_settings().spec.seed)


def __getattr__(name: str) -> Any:
    for module in (lightning, lightning.pytorch):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"neither lightning nor elastane.integrations.lightning has {name}")
