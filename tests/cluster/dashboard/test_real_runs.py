"""Pages beside a real cluster: runs grow, shrink, lose a worker and end, and the controller is killed."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

import elastane
from elastane.cluster.client.cluster import Cluster
from elastane.cluster.nouns.dashboard import DashboardSettings
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.common.errors import ElastaneError
from elastane.run.agent.presence import list_present_processes
from elastane.run.connections.coordinator_request import ask_coordinator
from elastane.run.nouns.control import AskStatus
from elastane.run.nouns.rundir import RunDir
from elastane.run.observability.run_files import read_run
from tests.cluster.dashboard.conftest import serve_dashboard, wait_for_feeds
from tests.cluster.processes.real_controller import RealController
from tests.run.processes.stage import SCRIPTS
from tests.waiting import WAIT_S, wait_until

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.alone]

USUAL_S, LONGEST_S = 1.0, 5.0
"""The time after which a page usually shows an event, and at most on a busy machine."""
SOURCES = str(Path(elastane.__file__).parents[1])
READ = {
    "/": "document.querySelector('#part-pools .count b')?.textContent",
    "/jobs": "[...document.querySelectorAll('#part-jobs_rows tr')].find((row) => "
    "row.querySelector('td.k a')?.textContent === 'train')?.querySelector('.size').textContent.split(' ')[0]",
    "/jobs/train": "document.querySelector('#part-job_head .tile b')?.textContent",
}
"""How the number of workers of the job is read on each page."""
DIED = "#part-run_history .glyph.bad"
FINISHED = "#part-jobs_rows .state.finished"
CANCELLED = "#part-job_head .state.cancelled"


class OpenPage:
    """A page in a browser that notes when it shows what.

    Args:
        page: of playwright.
        read: an expression that reads the number of workers.
    """

    def __init__(self, page, url: str, read: str) -> None:
        self.page, self.errors = page, []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(url)
        page.evaluate(
            "() => { window.counts = []; window.appeared = {}; const note = () => {"
            f" const now = {read}, last = window.counts.at(-1);"
            " if (now !== undefined && now !== last?.[1]) window.counts.push([Date.now() / 1000, now]); };"
            " note();"
            " new MutationObserver(note).observe(document.body, {childList: true, subtree: true}); }"
        )

    def find_count(self, count: int, after_s: float) -> float | None:
        """Return when the page first showed a number of workers after a time; None: it has not yet."""
        found = [at for at, shown in self.page.evaluate("window.counts") if shown == str(count)]
        return next((at for at in found if at >= after_s - 0.01), None)

    def expect(self, selector: str) -> None:
        """Note from now on when an element first appears."""
        assert self.page.locator(selector).count() == 0, selector
        self.page.evaluate(
            "(selector) => new MutationObserver((_, observer) => {"
            " if (!document.querySelector(selector)) return;"
            " window.appeared[selector] ??= Date.now() / 1000; observer.disconnect();"
            " }).observe(document.body, {childList: true, subtree: true})",
            selector,
        )

    def find_appearance(self, selector: str) -> float | None:
        return self.page.evaluate("(selector) => window.appeared[selector] ?? null", selector)


class Story:
    """A cluster with a dashboard and open pages, and how late each page was."""

    def __init__(self, controller: RealController, cluster: Cluster, pages: dict[str, OpenPage]) -> None:
        self.controller, self.cluster, self.pages = controller, cluster, pages
        self.run_dir = RunDir(Path(cluster.jobs.get("train").run_dir))
        self.late_s: dict[str, list[float]] = {path: [] for path in pages}

    def scale(self, workers: int, kind: str) -> None:
        """Give the job this many workers, and note how long after the event each page shows them."""
        before = max(event.id for event in self.cluster.jobs.events("train"))
        self.cluster.jobs.scale("train", min_replicas=workers, max_replicas=workers)
        self.note(workers, kind, before)

    def note(self, workers: int, kind: str, before: int) -> None:
        event = wait_until(lambda: self.find_event(kind, before), f"{kind} is an event of the job")
        for path, page in self.pages.items():
            seen_s = wait_until(
                lambda page=page: page.find_count(workers, event.time_s), f"{path} shows {workers} workers"
            )
            self.late_s[path].append(seen_s - event.time_s)

    def find_event(self, kind: str, after: int, job: str = "train"):
        found = self.cluster.jobs.events(job, after=after)
        return next((event for event in found if event.kind == kind), None)

    def wait_for_members(self, workers: int) -> None:
        wait_until(
            lambda: [row.state for row in self.cluster.jobs.workers("train")] == ["member"] * workers,
            f"{workers} workers train",
            state=lambda: self.cluster.jobs.workers("train"),
        )


@pytest.fixture
def story(stage, chromium, tmp_path):
    agent = stage.build_command("elastane.run.attempts.__main__")
    with ExitStack() as stack:
        controller = stack.enter_context(RealController(tmp_path, agent, devices=4))
        stack.callback(end_runs, controller.home)
        cluster = stack.enter_context(Cluster(controller.url, controller.token))
        submit(cluster, "train", 1, 100_000)
        wait_until(lambda: cluster.jobs.get("train").step > 0, "the job trains")
        url, _ = stack.enter_context(serve_dashboard(DashboardSettings(cluster_url=controller.url)))
        context = chromium.new_context(viewport={"width": 1366, "height": 860})
        stack.callback(context.close)
        context.set_default_timeout(WAIT_S * 1000)
        first = context.new_page()
        first.goto(f"{url}/sign-in")
        first.get_by_label("Your token").fill(controller.token)
        first.keyboard.press("Enter")
        first.get_by_text("Reading the jobs").wait_for(state="detached")
        pages = {
            path: OpenPage(first if path == "/" else context.new_page(), url + path, read)
            for path, read in READ.items()
        }
        pages["/jobs/train"].page.locator("#workers").wait_for()
        found = Story(controller, cluster, pages)
        found.wait_for_members(1)
        yield found
    wait_for_feeds()


def submit(cluster: Cluster, name: str, workers: int, steps: int) -> None:
    cluster.jobs.submit(
        JobSpec(
            name=name,
            team="default",
            script=str(SCRIPTS / "training.py"),
            args=("--seconds=0.01", f"--steps={steps}"),
            env={"PYTHONPATH": SOURCES},
            elastic_policy=ElasticPolicy(min_replicas=workers, max_replicas=workers),
        )
    )


def end_runs(home: Path) -> None:
    for root in (home / "runs").glob("*"):
        for pid in set(list_present_processes(RunDir(root))) - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)


def kill_worker(story: Story) -> int:
    """Kill the worker with the highest number, and return the number."""
    rows = ask_coordinator(story.run_dir, AskStatus()).processes
    worker, pid = max((row.worker, row.pid) for row in rows if row.role == "worker")
    os.kill(pid, signal.SIGKILL)
    return worker


def test_pages_show_each_change_of_real_runs_within_a_second_and_outlive_their_controller(story):
    cluster, pages = story.cluster, story.pages
    job = pages["/jobs/train"]
    for workers, kind in ((2, "job.grown"), (3, "job.grown"), (1, "job.shrunk"), (2, "job.grown")):
        story.scale(workers, kind)
        story.wait_for_members(workers)
    # What each worker does now.
    job.page.locator("#part-run_workers .now", has_text="%").first.wait_for()
    wait_for_rows(job, 2)

    job.expect(DIED)
    worker = kill_worker(story)
    died_s = wait_until(lambda: find_death(story.run_dir, worker), "the run records the death")
    story.late_s["/jobs/train"].append(
        wait_until(lambda: job.find_appearance(DIED), "its page has it") - died_s
    )
    story.wait_for_members(2)
    wait_for_rows(job, 2)

    # A job that ends by itself.
    pages["/jobs"].expect(FINISHED)
    submit(cluster, "short", 1, 20)
    ended = wait_until(lambda: find_end(cluster), "the short job has ended")
    seen_s = wait_until(lambda: pages["/jobs"].find_appearance(FINISHED), "the list shows its end")
    story.late_s["/jobs"].append(seen_s - ended.time_s)

    # The controller is killed: pages say so, the run goes on, and afterwards the same pages do.
    for page in pages.values():
        page.page.evaluate("window.stayed = true")
    step = cluster.jobs.get("train").step
    story.controller.kill()
    for page in pages.values():
        page.page.get_by_text("The controller does not answer. Jobs go on").wait_for()
    trained = wait_until(
        lambda: answer.step if (answer := read_status(story.run_dir)) and answer.step > step else None,
        "the run goes on without a controller",
    )
    story.controller.start()
    for path, page in pages.items():
        wait_until(
            lambda page=page: page.page.get_by_text("The controller does not answer").count() == 0,
            f"{path} has heard the controller again",
        )
    wait_until(lambda: cluster.jobs.get("train").step >= trained, "the controller sees the run again")
    story.scale(3, "job.grown")
    for path, page in pages.items():
        assert page.page.evaluate("window.stayed"), f"{path} was loaded again"
        assert page.errors == [], path

    before = max(event.id for event in cluster.jobs.events("train"))
    job.expect(CANCELLED)
    cluster.jobs.cancel("train")
    ended = wait_until(lambda: story.find_event("job.cancelled", before), "the job has ended")
    seen_s = wait_until(lambda: job.find_appearance(CANCELLED), "its page shows the end")
    story.late_s["/jobs/train"].append(seen_s - ended.time_s)
    for path, late_s in story.late_s.items():
        assert sorted(late_s)[len(late_s) // 2] <= USUAL_S, (path, late_s)
        assert max(late_s) <= LONGEST_S, (path, late_s)


def wait_for_rows(job: OpenPage, workers: int) -> None:
    rows = job.page.locator("#part-run_workers .workers tbody tr")
    wait_until(lambda: rows.count() == workers, f"the page has a row for each of {workers} workers")


def find_end(cluster: Cluster):
    return next((event for event in cluster.jobs.events("short") if event.kind == "job.finished"), None)


def find_death(run_dir: RunDir, worker: int) -> float | None:
    deaths = (event for event in read_run(run_dir).events if event.kind == "worker.died")
    return next((event.time for event in deaths if event.workers == (worker,)), None)


def read_status(run_dir: RunDir):
    try:
        return ask_coordinator(run_dir, AskStatus(), 1.0)
    except ElastaneError:
        return None
