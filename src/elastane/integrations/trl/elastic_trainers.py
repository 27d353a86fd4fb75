"""The trainers of ``trl``, with the loop of a run."""

from typing import Any

from trl.trainer import dpo_trainer, sft_trainer

from elastane.integrations.transformers.elastic_trainer import ElasticTrainer
from elastane.integrations.trl.argument_checks import check_dpo_arguments
from elastane.integrations.trl.trl_metrics import TrlMetrics


class SFTTrainer(sft_trainer.SFTTrainer, ElasticTrainer):
    """An ``SFTTrainer`` of ``trl`` that trains in a run, with the same bytes at any number of workers.

    Raises:
        BadInput: an argument cannot be kept exactly.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.values = TrlMetrics(self)


class DPOTrainer(dpo_trainer.DPOTrainer, ElasticTrainer):
    """A ``DPOTrainer`` of ``trl`` that trains in a run, with the same bytes at any number of workers.

    Raises:
        BadInput: an argument cannot be kept exactly.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        check_dpo_arguments(self.args)
        self.values = TrlMetrics(self)
