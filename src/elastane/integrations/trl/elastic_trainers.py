"""The trainers of ``trl``, with the loop of a run."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from trl.trainer import dpo_trainer, sft_trainer

from elastane.integrations.transformers.argument_checks import build_argument_error
from elastane.integrations.transformers.elastic_trainer import ElasticTrainer
from elastane.integrations.transformers.logged_values import MicrobatchValues

TOKENS = "num_tokens"
"""The name of a running total, which ``trl`` does not append but replace."""


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


class TrlMetrics(MicrobatchValues):
    """The metrics of a trainer of ``trl``, such as entropy, accuracy and rewards.

    Args:
        trainer: the trainer; it has lists of its metrics by mode and name, and the total of its tokens.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._before: dict[str, dict[str, list[float]]] = {}
        self._tokens_before = 0

    def begin(self) -> None:
        trainer = self._trainer
        self._before = trainer._metrics
        self._tokens_before = trainer._total_train_tokens
        trainer._metrics = {mode: defaultdict(list) for mode in self._before}

    def end(self) -> dict[str, float]:
        trainer = self._trainer
        collected, trainer._metrics = trainer._metrics, self._before
        tokens = trainer._total_train_tokens - self._tokens_before
        trainer._total_train_tokens = self._tokens_before
        values = {
            name: float(numbers[0])
            for lists in collected.values()
            for name, numbers in lists.items()
            if name != TOKENS
        }
        return {**values, TOKENS: tokens}

    def add(self, mode: str, values: Mapping[str, Sequence[float]]) -> None:
        trainer = self._trainer
        trainer._total_train_tokens += int(sum(values.get(TOKENS, ())))
        lists = trainer._metrics[mode]
        for name, numbers in values.items():
            if name != TOKENS:
                lists[name].extend(numbers)
        lists[TOKENS] = [trainer._total_train_tokens]

    def export(self) -> Any:
        trainer = self._trainer
        lists = {name: list(numbers) for name, numbers in trainer._metrics["train"].items()}
        return {"train": lists, "tokens": trainer._total_train_tokens}

    def restore(self, exported: Any) -> None:
        trainer = self._trainer
        trainer._metrics["train"] = defaultdict(list, exported["train"])
        trainer._total_train_tokens = exported["tokens"]


def check_dpo_arguments(args: Any) -> None:
    """Refuse a reference model that changes."""
    if args.sync_ref_model:
        raise build_argument_error(
            "sync_ref_model",
            "the reference model would change in the training, and a joining worker would lack the change",
            "train in several runs, each with the finished model of the one before as its ref_model",
        )
