"""``elastane recipe run`` and ``submit``: train a recipe on this machine, or as a job of the cluster."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from elastane.cli.command import AsJson, open_console
from elastane.cli.contract_options import ONLY_WITH_CONTRACT
from elastane.cli.jobs.job_file import anchor_paths
from elastane.cli.jobs.job_options import JobOptions
from elastane.cli.jobs.submission import apply_options
from elastane.cli.jobs.submit import describe_invocation, find_job_team, submit_job
from elastane.cli.options import expand_options, list_explicit_options
from elastane.cli.recipes.arguments import Changes, RecipeName, get_stem, read_typed_recipe
from elastane.cli.runs.run import open_new_run, train_to_end
from elastane.cli.runs.run_options import RunOptions
from elastane.cli.torch_process import run_module
from elastane.cluster.nouns.job_checks import check_job_spec
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, JobTraining
from elastane.common.errors import BadInput
from elastane.common.extras import MissingExtra, require
from elastane.common.generated_names import generate_name
from elastane.common.home import find_runs_home
from elastane.integrations.recipes.prepared_data import PreparedData
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_checks import describe_checkpoints
from elastane.integrations.recipes.recipe_files import format_inline, format_recipe
from elastane.integrations.recipes.resolution import (
    SCRIPTS,
    list_preloaded,
    pin_model,
    resolve_recipe,
    resolve_without_download,
)
from elastane.run.nouns.sites import parse_sites

if TYPE_CHECKING:
    from rich.console import Console


OF_UNMODIFIED_SCRIPTS = ("contract", *ONLY_WITH_CONTRACT)
"""Options of scripts for torchrun, which no recipe is."""
HIDDEN = (
    "module",
    "resume",
    "accept_changes",
    "virtual_ranks",
    "processes",
    *OF_UNMODIFIED_SCRIPTS,
)
"""Options of ``elastane run`` that a recipe decides, or that need no recipe."""


def run_recipe(
    context: typer.Context,
    named: RecipeName,
    changes: Changes = None,
    *,
    options: RunOptions,
    as_json: AsJson = False,
) -> None:
    """Train a recipe elastically, in the foreground, until the run is over.

    The options of elastane run win over the fields of the recipe: --workers over
    all numbers of workers, workers.sizes included. All data is read before the
    run begins. The complete recipe is stored in the run
    directory as recipe.yaml.

      $ elastane recipe run llama-tiny
      $ elastane recipe run llama-tiny --set training.steps=500 --workers 2:4
      $ elastane run --resume llama-tiny-amber-12
    """
    console = open_console(as_json=as_json)
    require("torch", "training needs torch")
    require("recipes", "recipes train models of transformers")
    written = read_typed_recipe(named, changes)
    recipe = resolve_recipe(written)
    here = select_sites(recipe, options)
    run_name = options.name or generate_name(get_stem(named))
    directory = (options.run_dir or find_runs_home() / run_name).absolute()
    typed = list_explicit_options(context, left_out=("changes",))
    opened = open_new_run(
        Path(SCRIPTS[recipe.task]),
        (str(directory / "recipe.yaml"),),
        complete_options(options, recipe, run_name),
        typed,
        console,
        preload=list_preloaded(recipe),
        sizes=choose_sizes(options, recipe),
        recipe=format_recipe(pin_model(recipe, written)),
        prepare=lambda: prepare_for_run(here, console),
    )
    train_to_end(opened, console, as_json=as_json)


def select_sites(recipe: Recipe, options: RunOptions) -> Recipe:
    """Return a recipe with the data of this machine only, if its data is bound to sites.

    Raises:
        BadInput: the site of this machine is missing, or has no data in the recipe.
    """
    sites = () if options.site is None else parse_sites(options.site)
    known = recipe.data.sites
    unknown = [site for site in sites if site not in known]
    if unknown or bool(sites) != bool(known):
        raise BadInput(
            f"--site {unknown[0]} has no data in the recipe" if unknown else "--site is missing",
            means="data.sites names the data of each site, which is read on machines of that site only",
            do=f"write --site and one of {', '.join(known)}, or several with commas"
            if known
            else "leave --site out, or name the data of each site: --set data.sites.NAME=PATH",
        )
    own = {site: path for site, path in known.items() if site in sites}
    return msgspec.structs.replace(recipe, data=msgspec.structs.replace(recipe.data, sites=own))


def choose_sizes(options: RunOptions, recipe: Recipe) -> tuple[int, ...]:
    """Return the only numbers of workers of the run; empty: all within its limits."""
    return () if options.workers is not None or options.debug else recipe.workers.sizes


def complete_options(options: RunOptions, recipe: Recipe, name: str) -> RunOptions:
    """Return the options of the run: the typed ones, and those of the recipe for the others."""
    workers, rules = recipe.workers, recipe.checkpoints
    cpus = max(2, len(os.sched_getaffinity(0)))
    most = max(workers.min, min(cpus // workers.processes, recipe.most_workers))
    limits = workers.min, workers.max or most
    if workers.sizes:
        limits = workers.sizes[0], workers.sizes[-1]
    defaults = {
        "workers": "{}:{}".format(*limits),
        "processes": workers.processes,
        "copies": str(workers.copies),
        "checkpoint_every": rules.every,
        "keep_last": rules.keep_last,
        "keep_best": rules.keep_best or None,
    }
    missing = {field: value for field, value in defaults.items() if getattr(options, field) is None}
    return msgspec.structs.replace(
        options, module=True, name=name, virtual_ranks=recipe.virtual_ranks, **missing
    )


recipe_run = expand_options(run_recipe, left_out=HIDDEN)


def submit_recipe(
    named: RecipeName, changes: Changes = None, *, options: JobOptions, as_json: AsJson = False
) -> None:
    """Submit a recipe to the cluster as a job.

    The options of elastane submit win over the fields of the recipe. The job
    contains the complete recipe; the nodes need its data and models at the same
    paths, or copy a model at a URL. All data is read before the job is submitted,
    and a model of the hub or at a URL is downloaded. --dry-run does neither: its
    job names the model of the hub, which each node then needs in its cache, or
    downloads.

      $ elastane recipe submit llama-tiny --workers 1:4
      $ elastane recipe submit llama-tiny --dry-run > job.yaml
    """
    typed = read_typed_recipe(named, changes)
    if options.dry_run:
        recipe = sent = resolve_without_download(typed)
    else:
        recipe = resolve_recipe(typed)
        sent = pin_model(recipe, typed)
    refuse_sites(recipe)
    invocation = describe_invocation()
    written = JobSpec(
        name=generate_name(get_stem(named)),
        team=find_job_team(options),
        module=SCRIPTS[recipe.task],
        args=(format_inline(sent),),
        # The legal sizes of the recipe belong to its own limits.
        processes=recipe.workers.processes,
        elastic_policy=make_elastic_policy(recipe) if options.workers is None else ElasticPolicy(),
        training=JobTraining(
            virtual_ranks=recipe.virtual_ranks,
            copies=recipe.workers.copies,
            checkpoints=describe_checkpoints(recipe.checkpoints),
            preload=list_preloaded(recipe),
        ),
    )
    spec = anchor_paths(apply_options(written, options, invocation), invocation.directory)
    # All paths of the recipe are absolute, and machines elsewhere may not have this directory.
    spec = msgspec.structs.replace(spec, working_dir="")
    check_job_spec(spec)
    if not options.dry_run:
        prepare_for_job(recipe, open_console(as_json=as_json))
    submit_job(spec, options, invocation, as_json=as_json)


def refuse_sites(recipe: Recipe) -> None:
    """Refuse a recipe with data that is bound to sites: all data is read where the job is submitted.

    Raises:
        BadInput: the recipe has such data.
    """
    if recipe.data.sites:
        raise BadInput(
            "a recipe with data.sites cannot be a job",
            means="its data is read before the job is submitted, and no machine may read that of every site",
            do="begin it at one site: elastane recipe run NAME --listen --site SITE; then let others join",
        )


def make_elastic_policy(recipe: Recipe) -> ElasticPolicy:
    """Return the numbers of workers that a recipe allows, as a job has them."""
    workers = recipe.workers
    return ElasticPolicy(
        min_replicas=workers.min,
        max_replicas=workers.max or recipe.most_workers,
        replica_discrete_values=workers.sizes,
    )


recipe_submit = expand_options(
    submit_recipe,
    left_out=("module", "from_", "virtual_ranks", "processes", "ship_code", *OF_UNMODIFIED_SCRIPTS),
)


def prepare_for_run(recipe: Recipe, console: "Console") -> None:
    """Read all data of a recipe on this machine, encode it into the cache of the user, and print its size.

    Raises:
        BadInput: a row is bad, or the tokenizer cannot be used; nothing of the run exists.
    """
    request = msgspec.json.encode(recipe).decode()
    prepared = run_module("elastane.integrations.recipes.data_preparation", [request], PreparedData)
    console.print(prepared.describe(), markup=False)


def prepare_for_job(recipe: Recipe, console: "Console") -> None:
    """Read all data of a recipe as for a run, if this machine can; the nodes have the same files.

    Raises:
        BadInput: as for a run; no job exists.
    """
    try:
        require("torch", "training needs torch")
        require("recipes", "recipes train models of transformers")
    except MissingExtra as missing:
        console.print(f"note: the rows of the data are not checked here: {missing.what}", markup=False)
    else:
        prepare_for_run(recipe, console)
