"""Bodies of answers about jobs, built from stored jobs."""

from elastane.cluster.controller.agents.stored_agent import StoredAgent, format_agent_id
from elastane.cluster.controller.jobs.accounts import compute_cost
from elastane.cluster.controller.jobs.explanation import describe_next_decision, explain_size
from elastane.cluster.controller.jobs.size_history import is_stop
from elastane.cluster.controller.jobs.stored_job import StoredJob
from elastane.cluster.controller.store.history import StoredDecision
from elastane.cluster.nouns.history import DecisionRecord
from elastane.cluster.nouns.rest import Job, JobAgent, JobExplanation, JobSummary
from elastane.common.durations import HOUR_S


def render_summary(job: StoredJob) -> JobSummary:
    """Return a job as a row of a list."""
    least, most = job.spec.elastic_policy.limits
    return JobSummary(
        number=job.number,
        name=job.name,
        team=job.team,
        user=job.user,
        queue=job.queue,
        priority_class=job.priority_class,
        state=job.state,
        wanted=job.wanted,
        workers=job.workers,
        min_workers=least,
        max_workers=most,
        processes=job.spec.processes,
        step=job.step,
        steps=job.observed.steps,
        loss=job.observed.loss,
        samples_per_s=job.observed.samples_per_s if job.state == "running" else 0.0,
        submitted_s=job.submitted_s,
        started_s=job.started_s,
        ended_s=job.ended_s,
        retry_at_s=job.retry_at_s,
        unreadable=job.unreadable,
        next_decision=describe_next_decision(job),
    )


def render_job(job: StoredJob, agents: tuple[JobAgent, ...] = ()) -> Job:
    """Return the full record of a job."""
    summary = render_summary(job)
    return Job(
        **{name: getattr(summary, name) for name in JobSummary.__struct_fields__},
        version=job.version,
        spec=job.spec,
        grant=job.grant,
        observed=job.observed,
        explained=explain_size(job),
        run_dir=job.run_dir,
        attempts=job.attempts,
        crashes=job.crashes,
        resizes=job.resizes,
        preemptions=job.preemptions,
        resized_s=job.resized_s,
        spent=job.spent,
        egress_spent=0.0 if job.egress is None else job.egress.spent,
        spending_per_h=compute_cost(job.uses or (), HOUR_S),
        spending_since_s=job.using_since_s or 0.0,
        active_s=job.active_s,
        active_since_s=job.active_since_s,
        why=job.why,
        traceback=job.traceback,
        agents=agents,
    )


def render_agent(agent: StoredAgent, cluster: str) -> JobAgent:
    """Return an agent as a part of a job; ``cluster`` is the id of its cluster."""
    return JobAgent(
        id=format_agent_id(cluster, agent.number),
        engine=agent.engine,
        pool=agent.pool,
        workers=agent.workers,
        state=agent.state if agent.is_wanted else "leaving",
        node=agent.node,
        why=agent.why,
        asked_s=agent.asked_s,
    )


def render_explanation(job: StoredJob, decisions: tuple[StoredDecision, ...]) -> JobExplanation:
    """Return why a job has its size, with its newest decisions."""
    return JobExplanation(
        job=job.name,
        state=job.state,
        wanted=job.wanted,
        workers=job.workers,
        explanation=explain_size(job),
        decisions=tuple(render_decision(decision) for decision in decisions),
    )


def render_decision(stored: StoredDecision) -> DecisionRecord:
    """Return a decision as a part of an explanation."""
    decision = stored.decision
    if decision is None:
        sentences = (f"The record of this decision cannot be read: {stored.unreadable}.",)
        return DecisionRecord(
            id=stored.id, time_s=stored.time_s, action="unreadable", workers={}, sentences=sentences
        )
    return DecisionRecord(
        id=stored.id,
        time_s=stored.time_s,
        action="stop" if is_stop(decision) else decision.action,
        workers=decision.workers,
        sentences=stored.sentences,
    )
