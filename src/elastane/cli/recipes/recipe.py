"""``elastane recipe``: the command group, and its commands that only read recipes or write files."""

from pathlib import Path
from typing import Annotated

import msgspec

from elastane.cli.command import AsJson, make_group, open_console, print_json, wrap_command
from elastane.cli.options import argument
from elastane.cli.recipes.arguments import Changes, RecipeName, get_stem, read_typed_recipe
from elastane.cli.recipes.plan import plan_sizes
from elastane.cli.recipes.training import recipe_run, recipe_submit
from elastane.cli.runs.address_options import CommandWithListen
from elastane.integrations.recipes.recipe_files import format_recipe, list_recipes
from elastane.integrations.recipes.resolution import eject_recipe, load_recipe, resolve_without_download

HELP = """
Train models of the hub without code: Llama, GPT-OSS, Qwen 3 and GPT.

A recipe is one YAML file: the model, the task, the data, the global batch, the
schedule, the numbers of workers. NAME is a recipe of elastane recipe list, or
the path of your own .yaml file. With no data of yours, a recipe trains on the
text of Python's standard library.

  $ elastane recipe list
  $ elastane recipe run llama-tiny               [dim]trains in a minute on a laptop[/dim]
  $ elastane recipe run llama-tiny --set data.path=text/ --set training.steps=500
  $ elastane recipe show llama-3.1-8b-lora       [dim]show all fields for --set[/dim]
  $ elastane recipe plan llama-3.1-8b --devices 64:80GB
  $ elastane recipe submit llama-3.1-8b-lora --set data.path=chats.jsonl
  $ elastane recipe eject llama-tiny mine        [dim]write the script and the YAML[/dim]
"""


def list_catalog(as_json: AsJson = False) -> None:
    """List the recipes of the catalog.

    A file of your own is a recipe, too: write its path as NAME, such as
    elastane recipe run ./own.yaml.

    With --json, a list of objects with the keys name, task and description.
    """
    found = [(name, load_recipe(name, (), Path.cwd())) for name in list_recipes()]
    if as_json:
        print_json(
            [{"name": name, "task": listed.task, "description": listed.description} for name, listed in found]
        )
        return
    from elastane.cli.tables import build_table, print_wide

    cells = [(name, listed.task, listed.description) for name, listed in found]
    console = open_console()
    print_wide(console, build_table(("name", "task", "description"), cells, folds="description"))
    console.print("A recipe of your own is named by its path: elastane recipe run ./own.yaml", markup=False)


def show_recipe(named: RecipeName, changes: Changes = None, as_json: AsJson = False) -> None:
    """Show all fields of a recipe, as YAML; --set changes any of them.

    With --json, the recipe as JSON.
    """
    recipe = read_typed_recipe(named, changes)
    if as_json:
        print_json(msgspec.to_builtins(recipe))
    else:
        open_console().print_document(format_recipe(recipe))


def eject_files(
    named: RecipeName,
    folder: Annotated[Path | None, argument("FOLDER", "A folder for the two files. Default: ./NAME.")] = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Write the training script of a recipe and its complete YAML into FOLDER.

    The script is about a page of plain Python. Started with elastane run, it
    trains the same bytes as the recipe:

      $ elastane recipe eject llama-tiny mine
      $ elastane run mine/train.py

    Nothing is downloaded: the script downloads a model of the hub when it starts,
    if it is not in the cache of its machine.

    With --json, the paths of the two files.
    """
    recipe = resolve_without_download(read_typed_recipe(named, changes))
    script, written = eject_recipe(recipe, folder or Path(get_stem(named)))
    if as_json:
        print_json({"script": str(script), "recipe": str(written)})
        return
    console = open_console()
    console.print(f"wrote {script} and {written}; train with:", markup=False)
    processes = recipe.workers.processes
    several = f"--processes {processes} " if processes > 1 else ""
    console.print(f"  elastane run {several}{script}", markup=False)


recipe = make_group("recipe", HELP, {"list": list_catalog, "show": show_recipe})
recipe.command("run", cls=CommandWithListen)(wrap_command(recipe_run))
recipe.command("submit")(wrap_command(recipe_submit))
recipe.command("plan")(wrap_command(plan_sizes))
recipe.command("eject")(wrap_command(eject_files))
