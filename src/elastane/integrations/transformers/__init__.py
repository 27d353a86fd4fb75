"""The ``Trainer`` of ``transformers`` with its arguments, callbacks and methods, over an elastic run.

One changed import makes a script elastic::

    from elastane.integrations.transformers import Trainer
"""

from elastane.common.extras import require_for_import

with require_for_import("recipes", "elastane.integrations.transformers"):
    from elastane.integrations.transformers.elastic_trainer import ElasticTrainer

Trainer = ElasticTrainer

__all__ = ["ElasticTrainer", "Trainer"]
