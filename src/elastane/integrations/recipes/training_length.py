"""The number of steps of a recipe."""

import math

from elastane.integrations.recipes.recipe import Recipe


def count_training_steps(recipe: Recipe, samples: int) -> int:
    """Return the number of steps of a run.

    Args:
        recipe: the recipe.
        samples: the number of training samples.
    """
    training = recipe.training
    return training.steps or training.epochs * math.ceil(samples / recipe.batch.size)
