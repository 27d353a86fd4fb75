"""The recipe: one value that says which model a run trains, on what, how, and with how many workers."""

import math
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from elastane.common.field_checks import MOST_WORKERS
from elastane.integrations.recipes.data.spec import DataSpec, Task
from elastane.integrations.recipes.families import FamilyName
from elastane.run.nouns.round_options import InnerName, WireName
from elastane.run.nouns.sites import AbsentRule

Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
NotNegative: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Fraction: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
Workers: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_WORKERS)]
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")]


class RecipePart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every part of a recipe; an unknown field is an error."""


class ModelSpec(RecipePart, frozen=True, kw_only=True):
    """The model.

    Args:
        family: the family of a model with random weights.
        config: the configuration of a model with random weights, with the fields of ``transformers``. Without
            ``vocab_size`` the model gets the size of the tokenizer's vocabulary.
        source: a folder, a URL such as ``s3://bucket/model``, or a name on the hub, with a pretrained model;
            the file says ``from``. After a name ``@REVISION`` may follow.
        digest: of the files at a URL, which `elastane recipe submit` writes; empty: those that are there.
        dtype: of the weights; those in bfloat16 train as in float32, see `elastane.SplitAdamW`.
    """

    family: FamilyName = "llama"
    config: dict[str, Any] = {}
    source: str = msgspec.field(default="", name="from")
    digest: Digest = ""
    dtype: Literal["float32", "bfloat16"] = "float32"


class LoraSpec(RecipePart, frozen=True, kw_only=True):
    """A low-rank adapter, which is trained instead of the whole model.

    Args:
        rank: of the two matrices beside each adapted layer.
        alpha: the adapter's output is scaled by ``alpha / rank``.
        dropout: before the adapter.
        layers: the names of the layers to adapt; empty: all linear layers but the output.
    """

    rank: Positive = 8
    alpha: Positive = 16
    dropout: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    layers: tuple[str, ...] = ()


class PreferenceSpec(RecipePart, frozen=True, kw_only=True):
    """The loss of preference tuning, DPO.

    Args:
        beta: how strongly the model is kept near the reference, which is the model before the training.
    """

    beta: Annotated[float, msgspec.Meta(gt=0)] = 0.1


class BatchSpec(RecipePart, frozen=True, kw_only=True):
    """The global batch; it does not depend on the number of workers.

    Args:
        size: samples per step.
        microbatch: samples that a worker computes at once.
        context: tokens per sample.
    """

    size: Positive = 16
    microbatch: Positive = 2
    context: Annotated[int, msgspec.Meta(ge=2)] = 128

    @property
    def microbatches(self) -> int:
        """The number of microbatches of a step."""
        return self.size // self.microbatch


class RoundsSpec(RecipePart, frozen=True, kw_only=True):
    """Rounds, for sites with little bandwidth between them; see `elastane.run.worker.session.Run.rounds`.

    Args:
        inner_steps: steps of each virtual rank between two exchanges.
        ranks: virtual ranks, which is the largest number of workers.
        outer_learning_rate: of the optimizer that steps once in a round.
        outer_momentum: Nesterov's; 0: none.
        inner_state: the state with which AdamW begins in each virtual rank and round: ``fresh``, or the
            ``averaged`` one of the round before.
        wire: what crosses between machines.
        group: virtual ranks that are added before they are rounded, such as those of one site.
        delay: 1: exchange the changes of a round under the steps of the next one.
        absent: with ``data.sites``: what a round does without a site. It waits, or skips its virtual ranks.
    """

    inner_steps: Positive = 50
    ranks: Positive = 4
    outer_learning_rate: Annotated[float, msgspec.Meta(gt=0)] = 0.7
    outer_momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.9
    inner_state: InnerName = "fresh"
    wire: WireName = "int8"
    group: Positive = 1
    delay: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0
    absent: AbsentRule | None = None


class TrainingSpec(RecipePart, frozen=True, kw_only=True):
    """The length of the training and its optimizer, AdamW.

    Args:
        steps: of the optimizer; 0: as many as ``epochs`` need. A run in rounds ends with a whole round.
        epochs: passes over the training data, if ``steps`` is 0.
        learning_rate: the highest one.
        warmup_steps: steps over which the learning rate rises from 0.
        final_learning_rate: the learning rate at the end of its cosine, as a fraction of the highest one.
        weight_decay: of all matrices.
        betas: of AdamW.
        clip_grad_norm: the largest norm of the gradient.
        autocast: compute in bfloat16, and keep the weights in their own type.
        recompute_activations: save memory: compute activations again in the backward pass.
        rounds: exchange what the steps have changed once in many of them, instead of each gradient.
    """

    steps: NotNegative = 100
    epochs: Positive = 1
    learning_rate: Annotated[float, msgspec.Meta(gt=0)] = 3e-4
    warmup_steps: NotNegative = 10
    final_learning_rate: Fraction = 0.1
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] = 0.1
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    clip_grad_norm: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    autocast: bool = False
    recompute_activations: bool = False
    rounds: RoundsSpec | None = None


class EvaluationSpec(RecipePart, frozen=True, kw_only=True):
    """When the model is evaluated on the held-out data, and writes a sample.

    Args:
        every: steps between two evaluations; the last step has one, too. 0: only there. In rounds it is made
            after the round with this step.
        samples: the most held-out samples per evaluation.
        prompt: the beginning of the text that the model continues; empty: of the first held-out sample.
        sample_tokens: the length of the text that the model writes; 0: it writes none.
    """

    every: NotNegative = 50
    samples: Positive = 64
    prompt: str = ""
    sample_tokens: NotNegative = 48


class WorkerPolicy(RecipePart, frozen=True, kw_only=True):
    """The numbers of workers that a run may have, and what each of them is.

    Args:
        min: the fewest.
        max: the most; 0: as many as the machine has CPUs, up to the number of microbatches.
        sizes: the legal numbers of workers, ascending; empty: all from min to max.
        processes: of each worker; several ones divide the model by FSDP2, a layer at a time.
        copies: how many workers keep each piece of the optimizer's state.
    """

    min: Workers = 1
    max: Annotated[int, msgspec.Meta(ge=0, le=MOST_WORKERS)] = 0
    sizes: tuple[Workers, ...] = ()
    processes: Positive = 1
    copies: Annotated[int, msgspec.Meta(ge=1)] | Literal["all"] = "all"


class CheckpointRules(RecipePart, frozen=True, kw_only=True):
    """When a run writes checkpoints, and which it keeps.

    Args:
        every: ``auto``, ``never``, or an interval: ``10 min``, ``500 steps``.
        keep_last: the number of the newest checkpoints to keep.
        keep_best: also keep the best by a metric, such as ``eval_loss:min``.
    """

    every: str = "auto"
    keep_last: Positive = 2
    keep_best: str = ""


class Recipe(RecipePart, frozen=True, kw_only=True):
    """A run without code: the content of a recipe's file.

    Args:
        description: one sentence for people.
        task: ``pretrain`` predicts text; ``finetune`` answers in conversations; ``preference`` prefers the
            better of two answers.
        lora: train an adapter instead of the whole model.
        preference: the loss of the task ``preference``.
        training: length and optimizer.
        evaluation: evaluations and samples.
        checkpoints: when checkpoints are written.
    """

    description: str = ""
    task: Task = "pretrain"
    model: ModelSpec = ModelSpec()
    lora: LoraSpec | None = None
    preference: PreferenceSpec = PreferenceSpec()
    data: DataSpec = DataSpec()
    batch: BatchSpec = BatchSpec()
    training: TrainingSpec = TrainingSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    workers: WorkerPolicy = WorkerPolicy()
    checkpoints: CheckpointRules = CheckpointRules()

    @property
    def virtual_ranks(self) -> int:
        """The largest number of processes that compute: microbatches share a step, and ranks a round."""
        rounds = self.training.rounds
        return self.batch.microbatches if rounds is None else rounds.ranks

    @property
    def most_workers(self) -> int:
        """The largest number of workers: each of their processes computes a virtual rank."""
        return self.virtual_ranks // self.workers.processes

    @property
    def drops_last(self) -> bool:
        """Whether each epoch leaves out its last samples: the processes of a worker share whole steps."""
        return self.workers.processes > 1


def count_training_steps(recipe: Recipe, samples: int) -> int:
    """Return the number of steps of a run; in rounds that of inner steps, which the last round may exceed.

    Args:
        samples: for training; 0: each site has data of its own.
    """
    return recipe.training.steps or recipe.training.epochs * _count_epoch_steps(recipe, samples)


def count_rounds(recipe: Recipe, samples: int) -> int:
    """Return the number of rounds that make the steps of a run."""
    rounds, per_epoch = recipe.training.rounds, _count_epoch_steps(recipe, samples)
    assert rounds is not None, "the recipe trains in rounds"
    epochs, rest = _divide(count_training_steps(recipe, samples), per_epoch)
    # The last round of an epoch is shorter.
    return epochs * math.ceil(per_epoch / rounds.inner_steps) + math.ceil(rest / rounds.inner_steps)


def count_made_steps(recipe: Recipe, samples: int, number: int) -> int:
    """Return the number of steps that a run has made after some steps, or after some rounds."""
    rounds, per_epoch = recipe.training.rounds, _count_epoch_steps(recipe, samples)
    if rounds is None:
        return number
    epochs, rest = _divide(number, math.ceil(per_epoch / rounds.inner_steps))
    return epochs * per_epoch + rest * rounds.inner_steps


def _divide(number: int, per_epoch: int) -> tuple[int, int]:
    """Return whole epochs and the rest; data that is bound to sites has no common epochs."""
    return divmod(number, per_epoch) if per_epoch else (0, number)


def _count_epoch_steps(recipe: Recipe, samples: int) -> int:
    size = recipe.batch.size
    return max(1, samples // size) if recipe.drops_last else math.ceil(samples / size)
