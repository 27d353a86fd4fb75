"""Train a model to prefer the better of two answers (DPO): ``elastane run prefer.py``.

The recipe decides everything: the model and its adapter, the data, the global batch, the schedule. It also
runs under plain ``python``, on one worker, with the same bytes.
"""

import argparse
from pathlib import Path

import torch

import elastane
from elastane.integrations.recipes.data.open_data import load_tokenizer, open_data
from elastane.integrations.recipes.evaluation import format_preference, measure_preference
from elastane.integrations.recipes.losses import ReferenceModel, move_batch, preference_loss_sum
from elastane.integrations.recipes.models import build_model, divide_model
from elastane.integrations.recipes.optimization import build_learning_rate_schedule, build_optimizer
from elastane.integrations.recipes.recipe import count_training_steps
from elastane.integrations.recipes.recipe_files import read_recipe
from elastane.integrations.recipes.resolution import resolve_recipe
from elastane.integrations.recipes.samples import write_sample
from elastane.integrations.recipes.training_loop import (
    choose_outer,
    is_evaluation_due,
    list_inner_steps,
    name_step,
    open_loop,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    beside = Path(__file__).with_name("recipe.yaml")
    parser.add_argument("recipe", nargs="?", default=beside, help="default: recipe.yaml beside this script")
    recipe = resolve_recipe(read_recipe(str(parser.parse_args().recipe)))
    run = elastane.join()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    tokenizer = load_tokenizer(recipe.data, recipe.task)
    data = open_data(recipe.data, tokenizer, recipe.task, recipe.batch.context)
    model = build_model(recipe, tokenizer).to(device)
    reference = ReferenceModel(model)
    model = divide_model(model)
    steps = count_training_steps(recipe, data.samples)
    optimizer = build_optimizer(model, recipe.training)
    scheduler = build_learning_rate_schedule(optimizer, recipe.training, steps)
    model, optimizer = run.prepare(
        model,
        optimizer,
        scheduler=scheduler,
        clip_grad_norm=recipe.training.clip_grad_norm,
        tokenizer=tokenizer,
        **choose_outer(recipe.training.rounds),
    )

    for step in open_loop(run, recipe, data):
        for inner_step in list_inner_steps(step):
            for microbatch in inner_step:
                batch = move_batch(microbatch, model)
                with torch.autocast(device, torch.bfloat16, enabled=recipe.training.autocast):
                    before = reference.compute_log_probs(model, batch)
                    loss, pairs = preference_loss_sum(model, before, batch, recipe.preference.beta)
                inner_step.backward(loss, weight=pairs)

        if data.held_out is not None and is_evaluation_due(recipe, data, step):
            score = measure_preference(run, model, reference, data, recipe)
            run.print(format_preference(name_step(step), score))
            if recipe.checkpoints.keep_best:
                run.checkpoint(eval_loss=score.loss)
            if recipe.evaluation.sample_tokens:
                write_sample(run, model, tokenizer, recipe.evaluation, data.held_out[0])


if __name__ == "__main__":
    main()
