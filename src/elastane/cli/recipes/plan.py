"""``elastane recipe plan``: the memory, traffic and speed of a recipe at each number of workers."""

from pathlib import Path
from typing import Annotated

import msgspec

from elastane.cli.command import AsJson, open_console, print_json
from elastane.cli.devices import count_devices
from elastane.cli.option_values import read_size_bytes
from elastane.cli.options import option
from elastane.cli.recipes.arguments import Changes, RecipeName, read_typed_recipe
from elastane.cli.torch_process import run_module
from elastane.common.extras import require
from elastane.integrations.recipes.model_source import (
    download_config,
    is_at_url,
    is_on_hub,
    read_model_config,
)
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_checks import check_sizes
from elastane.integrations.recipes.recipe_files import find_published_sizes
from elastane.integrations.recipes.recipe_plan import (
    PlanRequest,
    RecipePlan,
    build_plan_rows,
    describe_illegal_sizes,
    describe_plan,
    list_headings,
    mark_legal_sizes,
    parse_devices,
    parse_nodes,
)
from elastane.integrations.recipes.stored_model import fetch_model_config


def plan_sizes(
    named: RecipeName,
    changes: Changes = None,
    *,
    devices: Annotated[
        str | None,
        option(
            "N[:MEMORY]", "Number of devices, and the memory of each GPU: 8 or 8:80GB. Default: those here."
        ),
    ] = None,
    nodes: Annotated[
        int, option("N", "Number of equal machines that have these devices together.", show_default="1")
    ] = 1,
    link: Annotated[
        str | None, option("SPEED", "Speed of the network of each machine, such as 1gbit. Default: 10gbit.")
    ] = None,
    flops: Annotated[
        float | None,
        option(
            "F",
            "Floating-point operations per second that one worker reaches, such as 4e14. Default: measured "
            "on this machine with a small model.",
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        option("SIZE", "Bytes per second between two workers of a machine, such as 10GB. Default: 1.25GB."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan the memory, the traffic and the speed of a recipe at each number of workers.

    Nothing is trained, and the model is built without its weights. Of a model at a
    URL, or of the hub that no recipe of the catalog names, only config.json is
    downloaded.

      $ elastane recipe plan llama-tiny
      $ elastane recipe plan llama-3.1-8b --devices 64:80GB --flops 4e14
      $ elastane recipe plan gpt-124m --devices 16 --nodes 2 --link 1gbit

    With --json, the plan.
    """
    require("torch", "a plan needs torch")
    require("recipes", "recipes train models of transformers")
    recipe = describe_model_only(read_typed_recipe(named, changes))
    check_sizes(recipe)
    group = parse_devices(devices or str(count_devices()[0]))
    request = PlanRequest(
        recipe=recipe, devices=group, flops_per_s=flops, nodes=parse_nodes(nodes, link, group)
    )
    if bandwidth is not None:
        bytes_per_s = float(read_size_bytes("--bandwidth", bandwidth))
        request = msgspec.structs.replace(request, bandwidth_bytes_per_s=bytes_per_s)
    planned = run_module(
        "elastane.integrations.recipes.memory_plan", [msgspec.json.encode(request).decode()], RecipePlan
    )
    plan = mark_legal_sizes(planned, recipe)
    if as_json:
        print_json(plan)
        return
    from elastane.cli.tables import build_table, print_wide

    console = open_console()
    headings = list_headings(plan)
    print_wide(console, build_table(headings, build_plan_rows(plan), numbers=headings))
    for sentence in (*describe_illegal_sizes(plan, recipe), *describe_plan(plan)):
        console.print(sentence, markup=False)


def describe_model_only(recipe: Recipe) -> Recipe:
    """Return a recipe for a plan: its model has the sizes, or a folder with the configuration."""
    model = recipe.model
    if not model.source:
        return recipe
    sizes = find_published_sizes(model.source)
    if sizes is not None:
        described = msgspec.structs.replace(model, family=sizes.family, config=sizes.config, source="")
    else:
        described = msgspec.structs.replace(model, source=str(_find_config(model.source)), config={})
    return msgspec.structs.replace(recipe, model=described)


def _find_config(source: str) -> Path:
    """Return a folder with the checked configuration of a pretrained model."""
    if is_at_url(source):
        return fetch_model_config(source)
    folder = download_config(source) if is_on_hub(source) else Path(source)
    read_model_config(folder)
    return folder
