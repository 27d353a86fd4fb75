"""Lightning's ``strategy="elastane"``, for a Trainer and for Fabric; importing this module registers it.

The import also seeds the random generators as `elastane.join` does, so that the model which a script builds
next has the same initial values in every worker.
"""

from elastane.api.extras import require_for_import

with require_for_import("lightning", "training with Lightning"):
    from lightning.fabric.strategies import STRATEGY_REGISTRY
    from lightning.pytorch.strategies import StrategyRegistry

    from elastane.integrations.lightning.fabric_strategy import ElastaneFabricStrategy
    from elastane.integrations.lightning.trainer_strategy import ElastaneStrategy

from elastane.runtime import worker_settings
from elastane.runtime.data.determinism import seed_everything

__all__ = ["ElastaneFabricStrategy", "ElastaneStrategy"]

DESCRIPTION = "Elastic training: workers join, leave and die"

StrategyRegistry.register("elastane", ElastaneStrategy, DESCRIPTION, override=True)
STRATEGY_REGISTRY.register("elastane", ElastaneFabricStrategy, DESCRIPTION, override=True)
seed_everything(worker_settings.get_settings().spec.seed)
