"""``elastane recipe submit``: submit a recipe to the cluster as a job."""

from elastane.cli.command import AsJson, open_console
from elastane.cli.jobs.job_file import anchor_paths
from elastane.cli.jobs.job_options import JobOptions
from elastane.cli.jobs.submission import apply_options
from elastane.cli.jobs.submit import describe_invocation, find_job_team, submit_job
from elastane.cli.options import expand_options
from elastane.cli.recipes.arguments import Changes, RecipeName, get_stem, read_typed_recipe
from elastane.cli.recipes.preparation import prepare_for_job
from elastane.cli.run_names import generate_name
from elastane.cluster.nouns.job_checks import check_job_spec
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, JobTraining
from elastane.integrations.recipes.recipe import Recipe
from elastane.integrations.recipes.recipe_checks import describe_checkpoints
from elastane.integrations.recipes.recipe_files import format_inline
from elastane.integrations.recipes.resolution import (
    SCRIPTS,
    list_preloaded,
    resolve_recipe,
    resolve_without_download,
)


def submit_recipe(
    named: RecipeName,
    changes: Changes = None,
    *,
    options: JobOptions,
    as_json: AsJson = False,
) -> None:
    """Submit a recipe to the cluster as a job.

    The options of elastane submit win over the fields of the recipe. The job
    contains the complete recipe; the nodes need its data and models at the same
    paths. All data is read before the job is submitted, and a model of the hub is
    downloaded. --dry-run does neither: its job names the model of the hub, which
    each node then needs in its cache, or downloads.

      $ elastane recipe submit llama-tiny --workers 1:4
      $ elastane recipe submit llama-tiny --dry-run > job.yaml
    """
    typed = read_typed_recipe(named, changes)
    recipe = resolve_without_download(typed) if options.dry_run else resolve_recipe(typed)
    invocation = describe_invocation()
    written = JobSpec(
        name=generate_name(get_stem(named)),
        team=find_job_team(options),
        module=SCRIPTS[recipe.task],
        args=(format_inline(recipe),),
        working_dir=str(invocation.directory),
        # The legal sizes of the recipe belong to its own limits.
        elastic_policy=make_elastic_policy(recipe) if options.workers is None else ElasticPolicy(),
        training=JobTraining(
            virtual_ranks=recipe.batch.virtual_ranks,
            copies=recipe.workers.copies,
            checkpoints=describe_checkpoints(recipe.checkpoints),
            preload=list_preloaded(recipe),
        ),
    )
    spec = anchor_paths(apply_options(written, options, invocation), invocation.directory)
    check_job_spec(spec)
    if not options.dry_run:
        prepare_for_job(recipe, open_console(as_json=as_json))
    submit_job(spec, options, invocation, as_json=as_json)


def make_elastic_policy(recipe: Recipe) -> ElasticPolicy:
    """Return the numbers of workers that a recipe allows, as a job has them."""
    workers = recipe.workers
    return ElasticPolicy(
        min_replicas=workers.min,
        max_replicas=workers.max or recipe.batch.virtual_ranks,
        replica_discrete_values=workers.sizes,
    )


recipe_submit = expand_options(submit_recipe, left_out=("module", "virtual_ranks"))
