"""The trainers of ``trl`` for supervised fine-tuning and preference tuning, over an elastic run.

One changed import makes a script elastic::

    from elastane.integrations.trl import SFTTrainer
"""

from elastane.common.extras import require_for_import

with require_for_import("trl", "elastane.integrations.trl"):
    from elastane.integrations.trl.elastic_trainers import DPOTrainer, SFTTrainer

__all__ = ["DPOTrainer", "SFTTrainer"]
