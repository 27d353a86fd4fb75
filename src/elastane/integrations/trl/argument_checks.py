"""The arguments of the trainers of ``trl`` that a run refuses."""

from typing import Any

from elastane.integrations.transformers.argument_checks import build_argument_error


def check_dpo_arguments(args: Any) -> None:
    """Refuse a reference model that changes.

    Raises:
        BadInput: the arguments ask for such a model.
    """
    if args.sync_ref_model:
        raise build_argument_error(
            "sync_ref_model",
            "the reference model would change in the training, and a joining worker would lack the change",
            "train in several runs, each with the finished model of the one before as its ref_model",
        )
