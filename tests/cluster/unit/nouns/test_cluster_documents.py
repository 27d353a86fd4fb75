"""Documents of jobs and clusters, and the errors for invalid ones."""

import math
from datetime import UTC, datetime, time

import pytest
from msgspec.structs import replace

from elastane.cluster.nouns.cluster import Holding, JobState, Snapshot
from elastane.cluster.nouns.cluster_checks import LEAST_DIVISOR, LONGEST_S, check_cluster
from elastane.cluster.nouns.config import (
    DAYS,
    Cohort,
    Once,
    Quota,
    Reservation,
    SchedulingRules,
    Team,
    Weekly,
)
from elastane.cluster.nouns.job_checks import check_job_spec, make_job_document, parse_job_spec
from elastane.cluster.nouns.jobs import ElasticPolicy
from elastane.cluster.nouns.pools import Pool
from elastane.cluster.scheduler.explanations import explain_decision
from elastane.cluster.scheduler.plan import plan
from elastane.common.errors import BadInput

JOB = {"version": 1, "name": "train", "team": "vision", "script": "train.py"}


def read_job_spec(document):
    return check_job_spec(parse_job_spec(document))


def test_a_job_document_has_fields_in_camel_case():
    spec = read_job_spec(
        JOB
        | {
            "priorityClass": "high",
            "resourcesPerWorker": {"devices": 8, "kinds": ["h100", "a100"]},
            "elasticPolicy": {
                "minReplicas": 2,
                "maxReplicas": 16,
                "replicaIncrementStep": 2,
                "gracefulShutdownTimeoutInSeconds": 600,
                "scalingTimeoutInSeconds": 60,
                "faultyScaleDownTimeoutInSeconds": 30,
            },
            "runPolicy": {"jobMaxRetryCount": 5},
            "data": {"regions": ["eu"], "labels": {"fast": "yes"}},
            "deadline": "2026-12-01T00:00:00Z",
        }
    )
    assert spec.elastic_policy.graceful_shutdown_timeout_in_seconds == 600
    assert spec.deadline == datetime(2026, 12, 1, tzinfo=UTC)
    assert read_job_spec(make_job_document(spec)) == spec


def test_discrete_values_need_no_limits_beside_them():
    spec = read_job_spec(JOB | {"elasticPolicy": {"replicaDiscreteValues": [2, 4, 8]}})
    assert spec.elastic_policy.replica_discrete_values == (2, 4, 8)


@pytest.mark.parametrize(
    ("change", "field", "write"),
    [
        ({"elasticPolicy": {"minReplica": 2}}, "elasticPolicy.minReplica:", "write minReplicas"),
        ({"elasticPolicy": {"minReplicas": "two"}}, "elasticPolicy.minReplicas:", "a whole number"),
        ({"elasticPolicy": {"minReplicas": 0}}, "elasticPolicy.minReplicas:", "write 1 or more"),
        ({"elasticPolicy": {"minReplicas": 4, "maxReplicas": 2}}, "elasticPolicy.maxReplicas:", "4 or more"),
        (
            {"elasticPolicy": {"replicaDiscreteValues": [4, 2]}},
            "elasticPolicy.replicaDiscreteValues:",
            "write",
        ),
        (
            {"elasticPolicy": {"replicaDiscreteValues": [2, 4], "maxReplicas": 8}},
            "elasticPolicy.replicaDiscreteValues:",
            "write minReplicas 2 and maxReplicas 4",
        ),
        (
            {"elasticPolicy": {"scalingTimeoutInSeconds": -1}},
            "elasticPolicy.scalingTimeoutInSeconds:",
            "write 0 or more",
        ),
        *(
            ({"elasticPolicy": {field: beyond}}, f"elasticPolicy.{field}:", "write 3600 or less")
            for field in (
                "gracefulShutdownTimeoutInSeconds",
                "scalingTimeoutInSeconds",
                "faultyScaleDownTimeoutInSeconds",
            )
            for beyond in (3600.5, 1e300)
        ),
        *(
            ({"elasticPolicy": {field: 10**400}}, f"elasticPolicy.{field}:", "write 1 to 1000000000")
            for field in ("minReplicas", "maxReplicas", "replicaIncrementStep")
        ),
        (
            {"elasticPolicy": {"replicaDiscreteValues": [2, 10**400]}},
            "elasticPolicy.replicaDiscreteValues[1]:",
            "write 1 to 1000000000",
        ),
        (
            {"resourcesPerWorker": {"devices": 10**400}},
            "resourcesPerWorker.devices:",
            "write 1 to 1000000000",
        ),
        ({"command": ["python", "train.py"]}, "command:", "write one of script, module, command"),
        ({"script": ""}, "script:", "write one of script, module, command"),
        ({"module": "train"}, "module:", "write one of script, module, command"),
        (
            {"script": "", "module": "pkg/train.py"},
            "module:",
            "write it as for python -m: package.train",
        ),
        ({"name": "a/b"}, "name:", "write letters"),
        ({"version": 2}, "version:", "write 1"),
        ({"budget": 0}, "budget:", "write a number above 0"),
        ({"budget": math.inf}, "budget: inf is not finite", "remove it"),
        ({"target": {"loss": math.nan}}, "target.loss: nan is not finite", "remove it"),
        (
            {"runPolicy": {"ttlSecondsAfterFinished": math.inf}},
            "runPolicy.ttlSecondsAfterFinished: inf is not finite",
            "remove it",
        ),
        ({"deadline": "2026-12-01T00:00:00"}, "deadline:", "write 2026-12-01T00:00:00Z"),
        ({"deadline": "9999-12-31T23:59:59-14:00"}, "deadline:", "between 1971 and 9998"),
        ({"deadline": "0001-01-01T00:00:00+14:00"}, "deadline:", "between 1971 and 9998"),
        (
            {"target": {"throughput": 64, "by": "2026-12-01T00:00:00Z"}},
            "target.by: requires target.loss",
            "write deadline",
        ),
        ({"teem": "vision"}, "teem:", "write team"),
        ({"processes": 3}, "processes: 3 is not a power of two", "write 1, 2, 4 or another"),
        ({"processes": 0}, "processes: 0 is not", "write 1, 2, 4 or another"),
        ({"processes": 128}, "processes: 128 is not", "up to 64"),
        (
            {"processes": 2, "contract": "torchrun"},
            "processes: cannot be combined with contract: torchrun",
            "write nprocPerNode",
        ),
        ({"processes": 2, "training": {"copies": 2}}, "training.copies: 2 cannot", "write all"),
        (
            {"processes": 2, "training": {"convergence": "fast"}},
            "training.convergence: fast cannot",
            "write exact",
        ),
        (
            {"processes": 4, "resourcesPerWorker": {"devices": 6}},
            "resourcesPerWorker.devices: 6 cannot be divided among the 4 processes",
            "write a multiple of 4",
        ),
        (
            {"processes": 4, "training": {"virtualRanks": 6}, "elasticPolicy": {"maxReplicas": 1}},
            "training.virtualRanks: 6 cannot be divided",
            "write a multiple of 4",
        ),
        (
            {"processes": 4, "training": {"virtualRanks": 4}, "elasticPolicy": {"maxReplicas": 2}},
            "training.virtualRanks: 4 is less than the 8 processes",
            "write 8 or more",
        ),
        ({"training": {"seeds": 1}}, "training.seeds:", "write seed"),
        ({"training": {"seed": -1}}, "training.seed:", "write 0 or more"),
        ({"training": {"seed": 2**63}}, "training.seed:", "write a smaller one"),
        ({"training": {"threads": 0}}, "training.threads:", "write 1 or more"),
        ({"training": {"convergence": "fats"}}, "training.convergence:", "write exact or fast"),
        ({"training": {"copies": 0}}, "training.copies:", "write 1 or more"),
        ({"training": {"copies": "some"}}, "training.copies:", "write a number or all"),
        ({"training": {"preload": ["a/b"]}}, "training.preload[0]: 'a/b' is not", "package.module"),
        (
            {"contract": "torchrun", "training": {"preload": ["torch"]}},
            "training.preload: cannot be combined with contract: torchrun",
            "remove it",
        ),
        (
            {"training": {"virtualRanks": 4}, "elasticPolicy": {"maxReplicas": 8}},
            "training.virtualRanks:",
            "write 8 or more",
        ),
        (
            {"training": {"checkpoints": {"every": "10 years"}}},
            "training.checkpoints.every:",
            '"500 steps"',
        ),
        ({"training": {"checkpoints": {"keepLast": 0}}}, "training.checkpoints.keepLast:", "1 or more"),
        ({"training": {"checkpoints": {"keepBest": "loss"}}}, "training.checkpoints.keepBest:", "eval_loss"),
        (
            {"training": {"checkpoints": {"at": ["step"]}}},
            "training.checkpoints.at[0]:",
            "write epoch or evaluation",
        ),
    ],
)
def test_an_error_names_the_field_and_says_what_to_write(change, field, write):
    with pytest.raises(BadInput) as caught:
        read_job_spec(JOB | change)
    assert caught.value.what.startswith(field)
    assert write in caught.value.do


def test_an_error_names_the_missing_field():
    with pytest.raises(BadInput, match="team: is missing"):
        read_job_spec({"name": "train", "script": "train.py"})


POOL = Pool(name="a", device="h100", devices=8)
HOURS = Weekly(start=time(9), end=time(18))


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (Snapshot(now_s=0, pools=(POOL, POOL)), "pools: 'a' occurs twice"),
        (
            Snapshot(now_s=0, pools=(POOL,), teams=(Team(name="t", quotas=(Quota(pool="b"),)),)),
            "teams.t.quotas.b.pool: there is no pool 'b'",
        ),
        (
            Snapshot(
                now_s=0, pools=(POOL,), teams=(Team(name="t", quotas=(Quota(pool="a", lending_limit=-1),)),)
            ),
            "teams.t.quotas.a.lendingLimit: -1 is less than 0",
        ),
        (Snapshot(now_s=0, teams=(Team(name="t", cohort="c"),)), "teams.t.cohort: there is no cohort 'c'"),
        (Snapshot(now_s=0, teams=(Team(name="t", weight=0),)), "teams.t.weight: 0 is not more than 0"),
        (
            Snapshot(now_s=0, cohorts=(Cohort(name="c", parent="d"), Cohort(name="d", parent="c"))),
            "cohorts.c.parent: forms a cycle: c > d > c",
        ),
        (
            Snapshot(now_s=0, cohorts=(Cohort(name="t"),), teams=(Team(name="t"),)),
            "teams and cohorts: 't' occurs twice",
        ),
        (
            Snapshot(
                now_s=0,
                pools=(POOL,),
                reservations=(
                    Reservation(
                        name="r", pool="a", devices=1, when=Weekly(start=time(9), end=time(18), zone="X/Y")
                    ),
                ),
            ),
            "reservations.r.when.zone: 'X/Y' is not a time zone",
        ),
        (
            Snapshot(
                now_s=0,
                pools=(POOL,),
                reservations=(
                    Reservation(
                        name="r",
                        pool="a",
                        devices=1,
                        when=Once(
                            start=datetime(2026, 1, 2, tzinfo=UTC), end=datetime(2026, 1, 1, tzinfo=UTC)
                        ),
                    ),
                ),
            ),
            "reservations.r.when.end:",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(cluster, said):
    with pytest.raises(BadInput) as caught:
        check_cluster(cluster)
    assert caught.value.what.startswith(said)
    assert caught.value.do


@pytest.mark.parametrize(
    ("wrong", "said", "write"),
    [
        (
            Snapshot(now_s=0, rules=SchedulingRules(horizon_s=1e12)),
            "rules.horizonS: 1e+12 is more than",
            "or less",
        ),
        (
            Snapshot(now_s=0, rules=SchedulingRules(cooldown_s=1e12)),
            "rules.cooldownS: 1e+12 is more than",
            "or less",
        ),
        (
            Snapshot(
                now_s=0,
                pools=(POOL,),
                reservations=(
                    Reservation(name="r", pool="a", devices=1, when=HOURS, announced_ahead_s=1e12),
                ),
            ),
            "reservations.r.announcedAheadS: 1e+12 is more than",
            "write 2592000 or less",
        ),
        (
            Snapshot(now_s=0, rules=SchedulingRules(fairness_grain=1e-320)),
            "rules.fairnessGrain: 9.99989e-321 is less than",
            "write 1e-06 or more",
        ),
        (
            Snapshot(now_s=0, teams=(Team(name="t", weight=1e-320),)),
            "teams.t.weight: 9.99989e-321 is less than",
            "write 1e-06 or more",
        ),
        (
            Snapshot(now_s=0, pools=(Pool(name="a", device="h100", devices=10**400),)),
            "pools.a.devices: is beyond 1000000000",
            "write 0 to 1000000000",
        ),
        (
            Snapshot(
                now_s=0,
                pools=(POOL,),
                teams=(Team(name="t", quotas=(Quota(pool="a", nominal_quota=10**400),)),),
            ),
            "teams.t.quotas.a.nominalQuota: is beyond 1000000000",
            "write 0 to 1000000000",
        ),
    ],
)
def test_numbers_out_of_range_are_refused(wrong, said, write):
    with pytest.raises(BadInput) as caught:
        check_cluster(wrong)
    assert caught.value.what.startswith(said)
    assert write in caught.value.do


def test_the_most_extreme_valid_numbers_can_be_planned_and_explained():
    night = Weekly(days=DAYS, start=time(22), end=time(6), zone="Europe/Berlin")
    rules = SchedulingRules(horizon_s=LONGEST_S, cooldown_s=LONGEST_S, fairness_grain=LEAST_DIVISOR)
    spec = read_job_spec(JOB | {"elasticPolicy": {"maxReplicas": 4}})
    shrunk = JobState(
        number=1,
        spec=spec,
        submitted_s=0.0,
        holds=(Holding(pool="a", workers=2),),
        started_s=0.0,
        resized_s=1000.0,
        setbacks=9,
        promised=2,
    )
    cluster = Snapshot(
        now_s=1001.0,
        pools=(POOL,),
        teams=(Team(name="vision", weight=LEAST_DIVISOR), Team(name="speech", weight=LEAST_DIVISOR)),
        reservations=(Reservation(name="r", pool="a", devices=2, when=night, announced_ahead_s=LONGEST_S),),
        rules=rules,
        jobs=(shrunk, JobState(number=2, spec=replace(spec, name="b", team="speech"), submitted_s=0.0)),
    )
    check_cluster(cluster)
    for decision in plan(cluster).decisions:
        assert explain_decision(decision, {"train": "vision", "b": "speech"})


def test_consistent_settings_are_accepted():
    check_cluster(
        Snapshot(
            now_s=0,
            pools=(POOL,),
            cohorts=(Cohort(name="c"),),
            teams=(Team(name="t", cohort="c", quotas=(Quota(pool="a", nominal_quota=4),)),),
            reservations=(Reservation(name="r", pool="a", devices=4, when=HOURS),),
        )
    )


def test_a_policy_in_python_equals_the_same_policy_in_a_file():
    spec = read_job_spec(JOB | {"elasticPolicy": {"maxReplicas": 4}})
    assert spec.elastic_policy == ElasticPolicy(max_replicas=4)
