"""The metrics of a run. `docs/metrics.md` has this table; a test compares them."""

from elastane.common.exposition import MetricDefinition

METRICS_PATH = "/metrics"
"""The path of the page on the server of a run's coordinator."""

PAUSE_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CHANGE_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)

STATE = MetricDefinition(
    "elastane_run_state", "gauge", "Always 1; the state of the run in a word", ("state",)
)
STEP = MetricDefinition("elastane_run_step", "gauge", "Last committed step")
STEPS_PLANNED = MetricDefinition(
    "elastane_run_steps_planned", "gauge", "Step with which the run ends; absent for a stream"
)
LOSS = MetricDefinition("elastane_run_loss", "gauge", "Loss of the last step; absent if it was not finite")
STEPS = MetricDefinition("elastane_run_steps_total", "counter", "Steps committed under this coordinator")
SAMPLES = MetricDefinition(
    "elastane_run_samples_total", "counter", "Samples trained on under this coordinator"
)
STEP_TIME = MetricDefinition(
    "elastane_run_step_seconds_total", "counter", "Duration of these steps, of the slowest worker in each"
)
PHASE_TIME = MetricDefinition(
    "elastane_run_phase_seconds_total",
    "counter",
    "Time of these steps in which the slowest worker loaded samples (deal), computed, waited for the sums of "
    "others (reduce), or applied them",
    ("phase",),
)
LAST_STEP = MetricDefinition(
    "elastane_run_last_step_timestamp_seconds", "gauge", "When the last step was committed, since 1970"
)
WORKERS = MetricDefinition(
    "elastane_run_workers", "gauge", "Processes of workers by what they do", ("state",)
)
TARGET = MetricDefinition("elastane_run_workers_wanted", "gauge", "Workers that the run should have")
GENERATION = MetricDefinition("elastane_run_generation", "gauge", "Number of the generation at work")
EVENTS = MetricDefinition(
    "elastane_run_events_total", "counter", "Changes of the run under this coordinator", ("event",)
)
PAUSE_TIME = MetricDefinition(
    "elastane_run_pause_seconds",
    "histogram",
    "Longest wait of a healthy worker at a change of the workers, beyond a usual step",
    (),
    PAUSE_S,
)
RESIZE_TIME = MetricDefinition(
    "elastane_run_resize_seconds",
    "histogram",
    "Time from a request for a number of workers to the first step with this number",
    (),
    CHANGE_S,
)
RECOVERY_TIME = MetricDefinition(
    "elastane_run_recovery_seconds",
    "histogram",
    "Time from the record of a death to the first step without the dead worker",
    (),
    CHANGE_S,
)
CHECKPOINT_TIME = MetricDefinition(
    "elastane_run_checkpoint_timestamp_seconds",
    "gauge",
    "When the newest checkpoint was complete, since 1970; absent before the first",
)
CHECKPOINT_BYTES = MetricDefinition("elastane_run_checkpoint_bytes", "gauge", "Size of the newest checkpoint")
WRITTEN_BYTES = MetricDefinition(
    "elastane_run_checkpoint_bytes_total", "counter", "Bytes of the checkpoints saved under this coordinator"
)
TRAFFIC_BYTES = MetricDefinition(
    "elastane_run_step_traffic_bytes",
    "gauge",
    "Bytes that workers exchange with other machines in a usual step; absent on one machine",
    ("direction",),
)

RUN_METRICS = (
    STATE,
    STEP,
    STEPS_PLANNED,
    LOSS,
    STEPS,
    SAMPLES,
    STEP_TIME,
    PHASE_TIME,
    LAST_STEP,
    WORKERS,
    TARGET,
    GENERATION,
    EVENTS,
    PAUSE_TIME,
    RESIZE_TIME,
    RECOVERY_TIME,
    CHECKPOINT_TIME,
    CHECKPOINT_BYTES,
    WRITTEN_BYTES,
    TRAFFIC_BYTES,
)
