"""The metrics of a cluster. `docs/metrics.md` has this table; a test compares them."""

from elastane.common.exposition import MetricDefinition

BRIEF_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LONG_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0)

INFO = MetricDefinition("elastane_info", "gauge", "Always 1; the version of the controller", ("version",))
CHECK_FAILING = MetricDefinition(
    "elastane_check_failing", "gauge", "1 while a check of the controller or its store fails", ("check",)
)
JOBS = MetricDefinition("elastane_jobs", "gauge", "Jobs that have not ended", ("team", "state"))
OLDEST_QUEUED = MetricDefinition(
    "elastane_queue_oldest_seconds",
    "gauge",
    "Time for which the first job in the queue has had no devices; absent without such a job",
    ("team",),
)
JOB_EVENTS = MetricDefinition(
    "elastane_job_events_total", "counter", "Changes of jobs since the controller started", ("team", "event")
)
QUEUE_TIME = MetricDefinition(
    "elastane_queue_time_seconds",
    "histogram",
    "Time from the submission of a job to its first devices",
    ("team",),
    LONG_S,
)
PLAN_TIME = MetricDefinition(
    "elastane_plan_time_seconds",
    "histogram",
    "Duration of a plan, from the snapshot of the store to the stored decisions",
    (),
    BRIEF_S,
)
ARRIVAL_TIME = MetricDefinition(
    "elastane_arrival_time_seconds",
    "histogram",
    "Time from a decision that gives a job workers, or from the death of one, until all of them train",
    (),
    LONG_S,
)
POOL_DEVICES = MetricDefinition(
    "elastane_pool_devices", "gauge", "Devices of a pool that there are", ("pool",)
)
POOL_FREE = MetricDefinition(
    "elastane_pool_devices_free", "gauge", "Idle devices of a pool that jobs may have", ("pool",)
)
POOL_LEAVING = MetricDefinition(
    "elastane_pool_devices_leaving", "gauge", "Devices of a pool on nodes that go away", ("pool",)
)
POOL_RESERVED = MetricDefinition(
    "elastane_pool_devices_reserved", "gauge", "Devices of a pool that the calendar reserves", ("pool",)
)
POOL_USED = MetricDefinition(
    "elastane_pool_devices_used",
    "gauge",
    "Devices of a pool that jobs use: of their own quota, borrowed, or spot",
    ("pool", "terms"),
)
POOL_PRICE = MetricDefinition(
    "elastane_pool_device_price", "gauge", "Price of one device of a pool for an hour", ("pool",)
)
NODES = MetricDefinition("elastane_nodes", "gauge", "Nodes that engines have seen", ("pool", "wanted"))
TEAM_USED = MetricDefinition(
    "elastane_team_devices_used", "gauge", "Devices that the jobs of a team use", ("team", "pool")
)
TEAM_QUOTA = MetricDefinition(
    "elastane_team_devices_quota", "gauge", "Devices of a pool that a team owns", ("team", "pool")
)
USE = MetricDefinition(
    "elastane_device_use_seconds_total",
    "counter",
    "Device-seconds that jobs have used since the controller started",
    ("team", "terms"),
)
COST = MetricDefinition(
    "elastane_cost_total",
    "counter",
    "Cost of devices and of bytes between sites since the controller started, in the unit of the prices",
    ("team",),
)
EGRESS_COST = MetricDefinition(
    "elastane_egress_cost_total",
    "counter",
    "The part of the cost that bytes between sites have caused",
    ("team",),
)
JOBS_LEFT_OUT = MetricDefinition(
    "elastane_jobs_left_out", "gauge", "Running jobs without series of their own, because there are too many"
)
# Not `job`: Prometheus gives each series a label of that name, which says how it was scraped.
OF_A_JOB = ("job_name", "team")
JOB_WORKERS = MetricDefinition("elastane_job_workers", "gauge", "Workers of a job that train", OF_A_JOB)
JOB_WANTED = MetricDefinition(
    "elastane_job_workers_wanted", "gauge", "Workers that the plan gives to a job", OF_A_JOB
)
JOB_STEP = MetricDefinition("elastane_job_step", "gauge", "Last committed step of a job", OF_A_JOB)
JOB_SPEED = MetricDefinition(
    "elastane_job_samples_per_second",
    "gauge",
    "Speed of a job at its present size; absent until it is measured",
    OF_A_JOB,
)
JOB_CHECKPOINT = MetricDefinition(
    "elastane_job_checkpoint_timestamp_seconds",
    "gauge",
    "When the newest checkpoint of a job was complete, since 1970; absent before the first",
    OF_A_JOB,
)

HEALTH_METRICS = (INFO, CHECK_FAILING)
JOB_METRICS = (JOBS_LEFT_OUT, JOB_WORKERS, JOB_WANTED, JOB_STEP, JOB_SPEED, JOB_CHECKPOINT)
CLUSTER_METRICS = (
    *HEALTH_METRICS,
    JOBS,
    OLDEST_QUEUED,
    JOB_EVENTS,
    QUEUE_TIME,
    PLAN_TIME,
    ARRIVAL_TIME,
    POOL_DEVICES,
    POOL_FREE,
    POOL_LEAVING,
    POOL_RESERVED,
    POOL_USED,
    POOL_PRICE,
    NODES,
    TEAM_USED,
    TEAM_QUOTA,
    USE,
    COST,
    EGRESS_COST,
    *JOB_METRICS,
)
