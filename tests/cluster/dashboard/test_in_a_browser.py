"""The pages in a real browser: widths, dark and light, by keyboard, and over a restart of the controller."""

import time
from contextlib import ExitStack
from datetime import time as clock_time

import msgspec
import pytest
from sqlalchemy import insert

from elastane.cluster.controller.store import history
from elastane.cluster.controller.store.tables import egress, usage
from elastane.cluster.nouns.config import Reservation, Weekly
from elastane.cluster.nouns.dashboard import DashboardSettings
from elastane.cluster.nouns.job_records import HeldWorkers, ObservedJob
from tests.cluster.controller import job_rows
from tests.cluster.dashboard.conftest import Site, serve_dashboard, wait_for_feeds
from tests.cluster.dashboard.run_records import write_run
from tests.waiting import WAIT_S, wait_until

pytestmark = pytest.mark.processes

WIDTHS = (1366, 820, 390)
PAGES = (
    "/",
    "/jobs",
    "/jobs?state=failed&sort=next",
    "/jobs/train",
    "/jobs/wait-0",
    "/jobs/broken",
    "/usage?by=job",
    "/calendar",
    "/policy",
    "/audit",
    "/nothing",
)
FOCUSABLE = (
    "a[href], button, input:not([type=hidden], [type=radio]:not(:checked)), select, textarea, summary, "
    "[tabindex='0']"
)
"""The controls of a page. Of radio buttons only the chosen one has a tab stop; arrow keys choose another."""
HOSTILE = "\"><script>document.title = 'broken'</script><img src=x onerror=\"document.title = 'broken'\">"


@pytest.fixture
def busy(site, make_spec, tmp_path):
    """A site with a job that trains, with the records of a run, and others that wait or have failed."""
    operator = site.ask("operator", user="op")
    operator.put(
        "/pools/h100", json={"name": "h100", "device": "h100", "devices": 8, "price": 2.5}
    ).raise_for_status()
    operator.put(
        "/teams/vision", json={"name": "vision", "quotas": [{"pool": "h100", "nominalQuota": 6}]}
    ).raise_for_status()
    site.submit(*map(make_spec, ("train", "wait-0", "wait-1", "wait-2", "broken")))
    write_run(tmp_path / "train")
    observed = ObservedJob(held={"h100": HeldWorkers(workers=2)}, step=40, steps=100, loss=1.25)
    site.observe("train", state="running", observed=observed, run_dir=str(tmp_path / "train"), workers=2)
    site.observe("broken", state="failed", why=HOSTILE, traceback=HOSTILE)
    when = Weekly(start=clock_time(9), end=clock_time(18), zone="Europe/Berlin")
    inference = Reservation(name="inference", pool="h100", devices=2, when=when)
    operator.put("/reservations/inference", content=msgspec.json.encode(inference)).raise_for_status()
    with site.api.store.begin_write() as tx:
        tx.execute(
            insert(usage).values(
                job="train", team="vision", user="ada", pool="h100", terms="owned", devices=2, price=2.5,
                from_s=time.time() - 5000, until_s=time.time() - 60,
            )
        )  # fmt: skip
        tx.execute(
            insert(egress).values(
                job="train", team="vision", user="ada", source="eu", target="us", sent_bytes=4 * 10**9,
                price=0.5, from_s=time.time() - 700, until_s=time.time() - 60,
            )
        )  # fmt: skip
    return site


@pytest.fixture
def open_page(chromium):
    """Open a page of a site as a signed-in person. It fails if the page logs an error."""
    with ExitStack() as stack:

        def go(site: Site, path: str = "/", *, role="submitter", width=1366, scheme="light"):
            context = chromium.new_context(
                viewport={"width": width, "height": 860}, color_scheme=scheme, timezone_id="Asia/Tokyo"
            )
            context.set_default_timeout(WAIT_S * 1000)
            stack.callback(context.close)
            page = context.new_page()
            page.errors = []
            page.on("pageerror", lambda error: page.errors.append(str(error)))
            page.on("console", lambda line: page.errors.append(line.text) if line.type == "error" else None)
            page.goto(f"{site.url}/sign-in")
            page.get_by_label("Your token").fill(site.api.token(role))
            page.keyboard.press("Enter")
            page.wait_for_url(f"{site.url}/")
            if path != "/":
                page.goto(f"{site.url}{path}")
            return page

        yield go


def test_a_person_signs_in_finds_a_job_and_pauses_it_with_the_keyboard_alone(busy, open_page):
    page = open_page(busy)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Jobs":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs")
    page.get_by_label("Search").focus()
    page.keyboard.type("train")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=train**")
    page.get_by_role("link", name="train", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs/train")
    # The chart of the run is that of its report, and its times are in the zone of the reader.
    assert page.locator("svg#chart .title").first.text_content() == "workers"
    page.locator("summary", has_text="Pause").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Pause train"
    page.keyboard.press("Enter")
    page.get_by_text("train saves a checkpoint, and gives its devices back").wait_for()
    assert busy.read("train")["spec"]["runPolicy"]["suspend"] is True
    assert page.errors == []


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_every_width_and_have_no_serious_fault_for_screen_readers(
    busy, open_page, scheme, tmp_path
):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    faults = []

    def look(page, path, width):
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            faults.append((path, width, "wider than the window"))
        faults.extend(
            (path, width, fault["id"], [node["html"] for node in fault["nodes"]][:3])
            for fault in axe.run(page).response["violations"]
            if fault["impact"] in {"serious", "critical"}
        )

    page = open_page(busy, role="operator", scheme=scheme)
    page.get_by_text("Reading the jobs").wait_for(state="detached")
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 860})
        for path in PAGES:
            page.goto(f"{busy.url}{path}")
            look(page, path, width)
        foresee(page, busy.url)
        look(page, "/policy, foreseen", width)
        foresee(page, busy.url, "a: [b")
        look(page, "/policy, refused", width)
    assert [error for error in page.errors if "404" not in error] == []
    with serve_dashboard(DashboardSettings(run_dir=str(tmp_path / "train")), key="k") as (url, _):
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 860})
            page.goto(f"{url}/sign-in")
            look(page, "/sign-in", width)
            page.goto(f"{url}/sign-in?key=k")
            look(page, "run", width)
    assert faults == []


def foresee(page, url, config=""):
    """Ask what a smaller quota, or another configuration, would change."""
    page.goto(f"{url}/policy")
    area = page.get_by_label("Configuration")
    area.fill(config or area.input_value().replace("nominalQuota: 6", "nominalQuota: 1"))
    page.get_by_role("button", name="Show what would change").click()
    page.locator(".notice.bad" if config else "#foreseen").wait_for()


@pytest.mark.long
@pytest.mark.parametrize("path", PAGES)
def test_every_control_of_a_page_is_reached_by_the_tab_key_in_order_and_shows_it(busy, open_page, path):
    page = open_page(busy, path, role="operator", width=820)
    # A page that changes meanwhile keeps the focus; another test has that.
    page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide'))")
    wanted = page.evaluate(
        f"() => [...document.querySelectorAll(`{FOCUSABLE}`)].filter((one) => one.checkVisibility())"
        ".map((one, number) => { one.dataset.place = number; return number; })"
    )
    reached = []
    for _ in range(len(wanted) + 2):
        page.keyboard.press("Tab")
        place, outline = page.evaluate(
            "() => { const one = document.activeElement;"
            " return [one.dataset.place ?? null, getComputedStyle(one).outlineStyle]; }"
        )
        if place is None:
            break
        reached.append(int(place))
        assert outline != "none", page.evaluate("document.activeElement.outerHTML")
    assert reached == wanted, path


@pytest.mark.long
def test_an_operator_foresees_a_change_with_the_keyboard_alone(busy, open_page):
    page = open_page(busy, "/policy", role="operator")
    page.get_by_label("Configuration").focus()
    page.keyboard.press("Control+Home")
    page.keyboard.type("# with the keyboard")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Show what would change"
    page.keyboard.press("Enter")
    page.get_by_text("No document would change.").wait_for()
    assert busy.ask("operator", user="op").get("/pools/h100").status_code == 200
    assert page.errors == []


@pytest.mark.long
def test_the_focus_stays_where_it_is_when_a_part_changes(busy, open_page, make_spec):
    page = open_page(busy, "/jobs")
    link = page.get_by_role("link", name="Team", exact=True)
    link.focus()
    busy.submit(make_spec("newest"))
    page.get_by_role("link", name="newest", exact=True).wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Team"


@pytest.mark.long
def test_the_usage_page_has_the_part_of_bytes_between_sites_where_there_are_some(busy, open_page):
    page = open_page(busy, "/usage?by=pool")
    cells = page.locator("tbody tr", has_text="eu>us").locator("td").all_text_contents()
    assert page.locator("thead th").all_text_contents()[-2:] == ["Egress", "Cost"]
    assert cells[-2:] == ["2.00", "2.00"]


def test_no_script_of_a_job_runs(busy, open_page):
    page = open_page(busy, "/jobs/broken")
    for path in ("/", "/jobs", "/jobs/broken", f"/jobs?q={HOSTILE}"):
        page.goto(f"{busy.url}{path}")
        assert page.title().endswith("Elastane")
        assert page.locator("img").count() == 0
    page.goto(f"{busy.url}/jobs/broken")
    assert "<script>document.title" in page.locator("pre.reason").text_content()
    assert page.errors == []


def add_job(api, spec):
    """Store a job while the controller does not answer."""
    with api.store.begin_write() as tx:
        job_rows.submit(tx, spec, "ada", api.clock())
        history.append_event(tx, "job.submitted", "", api.clock(), team=spec.team, job=spec.name)


@pytest.mark.long
def test_open_pages_go_on_after_the_controller_was_away(api, served, make_spec, open_page):
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        url = first.enter_context(served(api))
        dashboard = stack.enter_context(serve_dashboard(DashboardSettings(cluster_url=url)))
        site = Site(api, url, *dashboard)
        page = open_page(site, "/jobs")
        first.close()
        page.get_by_text("The controller does not answer. Jobs go on").wait_for()
        add_job(api, make_spec("later"))
        api.app.state.closing.clear()
        stack.enter_context(served(api, port=int(url.rpartition(":")[2])))
        page.get_by_role("link", name="later").wait_for()
        wait_until(
            lambda: page.get_by_text("The controller does not answer").count() == 0, "the notice is gone"
        )
        api.app.state.closing.set()
    wait_for_feeds()


@pytest.mark.long
def test_a_page_shows_a_change_within_a_second(busy, open_page, make_spec):
    page = open_page(busy, "/jobs")
    page.get_by_role("link", name="train", exact=True).wait_for()
    page.evaluate(
        "() => { window.seen = new Promise((found) => new MutationObserver(() => "
        "document.body.textContent.includes('newest') && found(performance.now()))"
        ".observe(document.body, {childList: true, subtree: true})); }"
    )
    began = page.evaluate("performance.now()")
    busy.submit(make_spec("newest"))
    assert page.evaluate("window.seen") - began < 5000  # a busy machine; benchmarks/dashboard.py measures it
