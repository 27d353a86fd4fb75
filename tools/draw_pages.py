"""Draw the pictures of docs/dashboard.md and README.md from a real cluster: `make screenshots`.

The script starts a controller with a dashboard, and jobs of two teams that train a small GPT. One of them
grows, loses a worker to a kill and shrinks; another one fails; others wait. Then it photographs the pages in
Chromium (Debian's package), at the size of a laptop and of a telephone. It takes some four minutes on two
cores. `--to` names another folder for the pictures.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import time as clock_time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from elastane.cluster.client.cluster import Cluster
from elastane.cluster.nouns.config import Quota, Reservation, Team, Weekly
from elastane.cluster.nouns.jobs import ElasticPolicy, JobSpec
from elastane.cluster.nouns.pools import Pool

ROOT = Path(__file__).parent.parent
TRAINING = str(ROOT / "examples/lm/train.py")
LAPTOP, PHONE = {"width": 1366, "height": 860}, {"width": 390, "height": 844}
PICTURES = (
    ("cluster", "/", LAPTOP, "light", False),
    ("jobs", "/jobs", LAPTOP, "light", False),
    ("job", "/jobs/gpt-base", {"width": 1366, "height": 1240}, "light", False),
    ("job-dark", "/jobs/gpt-base", {"width": 1366, "height": 1240}, "dark", False),
    ("job-phone", "/jobs/gpt-base", PHONE, "light", False),
    ("usage", "/usage", LAPTOP, "light", False),
    ("calendar", "/calendar", LAPTOP, "light", False),
)
"""Name, address, size of the window, colours, and whether the whole page is in the picture."""
DEVICES, WAIT_S = 6, 600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--steps", type=int, default=260, help="of the job in the pictures")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="elastane-pages-"))
    os.environ["ELASTANE_HOME"] = str(home)
    up = ("up", "-d", "--dashboard", "--json", f"--devices={DEVICES}", "--listen=127.0.0.1:0")
    ready = json.loads(run_elastane(*up))
    try:
        with Cluster(ready["url"], ready["token"]) as cluster:
            prepare(cluster)
            train(cluster, options.steps)
            options.to.mkdir(parents=True, exist_ok=True)
            photograph(ready["dashboard"], ready["token"], options.to)
            for job in cluster.jobs.list(states=("running", "queued")):
                cluster.jobs.cancel(job.name)
            wait_until(lambda: not list(cluster.jobs.list(states=("running",))), "the jobs have ended")
    finally:
        run_elastane("down")
        shutil.rmtree(home, ignore_errors=True)


def run_elastane(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "elastane", *words], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def prepare(cluster: Cluster) -> None:
    """Declare a price, two teams and a reservation."""
    cluster.documents.declare(Pool(name="local", device="cpu", devices=DEVICES, price=1.8))
    for name, devices in (("vision", 4), ("speech", 2)):
        cluster.documents.declare(Team(name=name, quotas=(Quota(pool="local", nominal_quota=devices),)))
    when = Weekly(start=clock_time(9), end=clock_time(18), zone="Europe/Berlin")
    cluster.documents.declare(Reservation(name="inference", pool="local", devices=1, when=when))


def train(cluster: Cluster, steps: int) -> None:
    """Run jobs until the first one has had a history."""
    submit(cluster, "warm-up", "vision", 1, 2, steps=40)
    wait_for(cluster, "warm-up", lambda job: job.state == "finished")
    submit(cluster, "gpt-base", "vision", 1, 2, steps=2 * steps)
    submit(cluster, "asr-small", "speech", 1, 2, steps=4 * steps)
    submit(cluster, "typo", "speech", 1, 1, steps=-1, words=("--epochs=3",))
    for number in range(1, 6):
        submit(cluster, f"ablation-{number}", ("vision", "speech")[number % 2], 4, 6, steps=steps)
    wait_for(cluster, "gpt-base", lambda job: job.step > 0.15 * steps)
    cluster.jobs.scale("gpt-base", min_replicas=1, max_replicas=4)
    wait_for(cluster, "gpt-base", lambda job: job.step > 0.4 * steps)
    kill_worker(cluster, "gpt-base")
    wait_for(cluster, "gpt-base", lambda job: job.step > 0.6 * steps)
    cluster.jobs.scale("gpt-base", min_replicas=1, max_replicas=3)
    wait_for(cluster, "gpt-base", lambda job: job.step > 0.8 * steps)


def submit(
    cluster: Cluster, name: str, team: str, least: int, most: int, *, steps: int, words: tuple[str, ...] = ()
) -> None:
    cluster.jobs.submit(
        JobSpec(
            name=name,
            team=team,
            script=TRAINING,
            args=words or (f"--steps={steps}", f"--evaluate-every={max(10, steps // 6)}"),
            # The pictures show this tree, also if another one is installed.
            env={"PYTHONPATH": str(ROOT / "src")},
            elastic_policy=ElasticPolicy(min_replicas=least, max_replicas=most),
        )
    )


def kill_worker(cluster: Cluster, name: str) -> None:
    rows = json.loads(run_elastane("ps", cluster.jobs.get(name).run_dir, "--json"))
    workers = [row["pid"] for row in rows if row["role"] == "worker"]
    os.kill(workers[-1], signal.SIGKILL)


def wait_for(cluster: Cluster, name: str, done: Callable[[Any], bool]) -> None:
    wait_until(lambda: done(cluster.jobs.get(name)), f"job {name} has gone on")


def wait_until(done: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + WAIT_S
    while not done():
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited {WAIT_S:g} s until {what}")
        time.sleep(0.5)


def photograph(url: str, token: str, to: Path) -> None:
    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError("there is no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, path, size, scheme, whole in PICTURES:
            shoot(browser, url, token, path, size, scheme, to / f"{name}.png", whole=whole)
        browser.close()


def shoot(
    browser: Browser, url: str, token: str, path: str, size: Any, scheme: Any, file: Path, *, whole: bool
) -> None:
    context = browser.new_context(viewport=size, color_scheme=scheme, timezone_id="Europe/Berlin")
    page = context.new_page()
    page.goto(f"{url}/sign-in")
    page.get_by_label("Your token").fill(token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{url}/")
    page.goto(url + path)
    page.get_by_text("Reading the jobs").wait_for(state="detached")
    if path == "/jobs/gpt-base":
        page.locator(".workers .now", has_text="%").first.wait_for(timeout=1000 * WAIT_S)
    page.wait_for_timeout(3000)
    page.screenshot(path=file, full_page=whole)
    print(file)
    context.close()


if __name__ == "__main__":
    main()
