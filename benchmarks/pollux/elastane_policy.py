"""Elastane's scheduler as a policy of the simulated cluster: the production plan, measurements, history."""

from typing import NamedTuple

from elastane.cluster.controller.jobs.size_history import SizeHistory, record_decision
from elastane.cluster.engines.pace import Pace, add_line_to_pace
from elastane.cluster.nouns.cluster import Holding, JobState, Snapshot
from elastane.cluster.nouns.job_records import UNMEASURED_RESIZE_S
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec, JobTraining
from elastane.cluster.nouns.plans import Decision
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.plan import plan
from elastane.cluster.scheduler.sizes import list_legal_sizes
from elastane.cluster.scheduler.speed_model import Speeds, pass_on_speeds, select_comparable_speeds
from elastane.run.nouns.records import LedgerLine, Samples

from pollux.applications import MOST_NODES, NODE_DEVICES, Placement
from pollux.placement import place_on_whole_nodes
from pollux.simulation import TICK_S, Job, Nodes, Submission

POOL = "t4"
DEVICES = MOST_NODES * NODE_DEVICES
MOST_PLANS = 5
"""Plans within a tick: the next one grants what the one before took back, as workers leave within a step."""
BEGIN_S = 1.7e9
"""The simulation begins at this time, because a plan counts seconds since 1970."""
RANKS_OF_A_WORKER = 2
"""Virtual ranks of each worker, at the most workers that a job may have. With one, 20 workers of 64 are no
faster than 16."""


class Known(NamedTuple):
    """What the controller would know of a job.

    Args:
        spec: as submitted.
        history: of its sizes.
        pace: its measured speeds.
        trained: samples it has trained on.
        prior: speeds of an earlier job with the same script.
    """

    spec: JobSpec
    history: SizeHistory = SizeHistory()
    pace: Pace = Pace()
    trained: float = 0.0
    prior: Speeds = ()


class Elastane:
    """The plan of `elastane.cluster.scheduler`, made once per tick.

    Args:
        resize_s: seconds that a resize takes, as a job would measure it.
        remaining: the jobs say how many samples they still need.
        prior: a job starts from the speeds of an earlier job with the same script.
        oracle: the true speeds are known, and nothing has to be measured.
    """

    def __init__(self, resize_s: float, *, remaining: bool, prior: bool = True, oracle: bool = False) -> None:
        self._resize_s = resize_s
        self._remaining, self._prior, self._oracle = remaining, prior, oracle
        self._known: dict[str, Known] = {}
        self._priors: dict[str, Speeds] = {}
        self._now_s = BEGIN_S

    def place_jobs(self, jobs: list[Job]) -> dict[str, Nodes]:
        self._now_s += TICK_S
        sizes = {job.name: len(job.nodes) for job in jobs}
        for name in sorted(self._known.keys() - sizes.keys()):
            self._keep_prior(self._known.pop(name))
        for job in jobs:
            self._learn(job)
        for _ in range(MOST_PLANS):
            decisions = self._plan(jobs, sizes)
            if all(decision.action in ("keep", "wait") for decision in decisions):
                break
            for decision in decisions:
                known = self._known[decision.job]
                if decision.action not in ("keep", "wait") or decision.entitled != known.history.promised:
                    history = record_decision(known.history, decision, self._now_s)
                    self._known[decision.job] = known._replace(history=history)
                sizes[decision.job] = sum(decision.workers.values())
        return place_on_whole_nodes({job.name: job.nodes for job in jobs}, sizes)

    def _plan(self, jobs: list[Job], sizes: dict[str, int]) -> tuple[Decision, ...]:
        states = tuple(self._describe(number, job, sizes[job.name]) for number, job in enumerate(jobs))
        pool = Pool(name=POOL, device=POOL, devices=DEVICES, devices_per_node=NODE_DEVICES)
        return plan(Snapshot(now_s=self._now_s, pools=(pool,), jobs=states)).decisions

    def _describe(self, number: int, job: Job, workers: int) -> JobState:
        known = self._known[job.name]
        history, pace = known.history, known.pace
        speeds, weights = select_comparable_speeds(pace.ordered_speeds, pace.weights)
        if self._oracle:
            speeds, weights = (), ()
        return JobState(
            number=number,
            spec=known.spec,
            submitted_s=BEGIN_S + job.submission.submitted_s,
            holds=(Holding(pool=POOL, workers=workers),) if workers else (),
            started_s=history.started_s,
            resized_s=history.resized_s,
            setbacks=history.setbacks,
            promised=history.promised,
            speeds=speeds,
            weights=weights,
            prior=_list_true_speeds(job, known.spec) if self._oracle else known.prior,
            resize_s=self._resize_s if job.resizes > 0 else UNMEASURED_RESIZE_S,
            virtual_ranks=known.spec.training.virtual_ranks or 0,
            trained=known.trained,
            # A run says how many steps it will make once it has begun.
            remaining=job.count_samples_left() if self._remaining and known.trained else None,
        )

    def _keep_prior(self, known: Known) -> None:
        """Keep what an ended job has shown of its script, for the next job."""
        comparable = select_comparable_speeds(known.pace.ordered_speeds, known.pace.weights)
        self._priors[known.spec.script] = pass_on_speeds(*comparable, known.prior)

    def _learn(self, job: Job) -> None:
        """Measure the last tick of a job, as its run directory would show it."""
        if job.name not in self._known:
            most = _count_most_workers(job.submission)
            policy = ElasticPolicy(min_replicas=1, max_replicas=most)
            script = f"{job.application.name}.py"
            training = JobTraining(virtual_ranks=job.submission.virtual_ranks or None)
            spec = JobSpec(name=job.name, script=script, team="all", elastic_policy=policy, training=training)
            self._known[job.name] = Known(spec, prior=self._priors.get(script, ()) if self._prior else ())
        known = self._known[job.name]
        if job.trained_s > 0:
            pace = known.pace
            line = LedgerLine(
                step=pace.step + 1,
                generation=0,
                workers=dict.fromkeys(range(len(job.nodes)), ()),
                samples=Samples(0, 0, 0, round(job.trained_samples), ""),
                loss=None,
                loss_hex="",
                time=self._now_s,
                seconds={"step": job.trained_s},
            )
            self._known[job.name] = known._replace(
                pace=add_line_to_pace(pace, line), trained=known.trained + job.trained_samples
            )


def cut_batches(submission: Submission) -> Submission:
    """Return the submission with the number of virtual ranks that docs/scheduling.md recommends."""
    workers, samples = _count_most_workers(submission), submission.samples
    ranks = min(samples, RANKS_OF_A_WORKER * workers) if workers > 1 else 1
    while samples % ranks:
        ranks += 1
    return submission._replace(virtual_ranks=ranks)


def _count_most_workers(submission: Submission) -> int:
    return min(DEVICES, submission.application.count_most_devices(submission.samples))


def _list_true_speeds(job: Job, spec: JobSpec) -> Speeds:
    """Return the speed at each legal size, packed on as few nodes as possible."""
    ranks = spec.training.virtual_ranks or 0
    legal = (size for run in list_legal_sizes(spec.elastic_policy, NODE_DEVICES, ranks) for size in run)
    return tuple((size, job.compute_speed(_pack(size))) for size in legal)


def _pack(devices: int) -> Placement:
    nodes, rest = divmod(devices, NODE_DEVICES)
    return (NODE_DEVICES,) * nodes + ((rest,) if rest else ())
