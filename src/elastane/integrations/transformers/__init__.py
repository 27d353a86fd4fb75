"""The ``Trainer`` of ``transformers`` with its arguments, callbacks and methods, over an elastic run.

One changed import makes a script elastic::

    from elastane.integrations.transformers import Trainer
"""

from elastane.api.extras import require_for_import

with require_for_import("recipes", "elastane.integrations.transformers"):
    from elastane.integrations.transformers.elastic_trainer import ElasticTrainer, seed_worker

Trainer = ElasticTrainer
# A script builds its model before its Trainer, with the same initial values on every worker.
seed_worker()

__all__ = ["ElasticTrainer", "Trainer"]
