"""The application: addresses of pages, of their streams, and of what their forms ask for."""

import threading
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qsl, quote, urlencode

from anyio import to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from elastane.cluster.dashboard.calendar_page import build_policy_page
from elastane.cluster.dashboard.feed import ClusterFeed, ClusterFeeds
from elastane.cluster.dashboard.guards import LARGEST_BODY_BYTES, Guard, list_host_names
from elastane.cluster.dashboard.pages import PAGES, build_page, describe_reader, list_navigation, stream_page
from elastane.cluster.dashboard.rendering import find_environment, render_page
from elastane.cluster.dashboard.requests import CHANGES, Form, apply_change
from elastane.cluster.dashboard.run_page import RunFeed, RunFeeds
from elastane.cluster.dashboard.sessions import Session, Sessions
from elastane.cluster.dashboard.usage_page import read_usage_csv
from elastane.cluster.nouns.dashboard import DashboardSettings
from elastane.common.connections.controller_connection import NotFound, RequestRefused
from elastane.common.errors import BadInput, ElastaneError, NoSuchRun

STATIC = {
    "page.css": ("elastane.run.observability", "text/css"),
    "page.js": ("elastane.run.observability", "text/javascript"),
    "dashboard.css": ("elastane.cluster.dashboard.static", "text/css"),
    "live.js": ("elastane.cluster.dashboard.static", "text/javascript"),
    "icon.svg": ("elastane.cluster.dashboard.static", "image/svg+xml"),
}
"""The files of pages. The page of a run shares its style and its script with the report of the run."""
Handler = Callable[[Request], Awaitable[Response]]


def build_dashboard(settings: DashboardSettings, *, port: int, key: str = "") -> Starlette:
    """Build the dashboard of a cluster, or of one run.

    Args:
        port: on which it listens.
        key: with which browsers sign in to the page of a run.
    """
    dashboard = Dashboard(settings, port, key)
    hosts = None if settings.certificate else list_host_names(settings.host, port)
    app = Starlette(
        routes=[
            Route("/sign-in", dashboard.show_sign_in, methods=["GET"]),
            Route("/sign-in", dashboard.sign_in, methods=["POST"]),
            Route("/sign-out", dashboard.sign_out, methods=["POST"]),
            Route("/static/{name}", dashboard.send_file, methods=["GET"]),
            Mount("/live", routes=[Route("/{path:path}", dashboard.stream, methods=["GET"])]),
            Route("/jobs/{job}/{action}", dashboard.change, methods=["POST"]),
            Route("/policy", dashboard.foresee, methods=["POST"]),
            Route("/usage.csv", dashboard.send_usage, methods=["GET"]),
            *(Route(path, dashboard.show, methods=["GET"]) for path in PAGES),
        ],
        middleware=[Middleware(Guard, hosts=hosts)],
        exception_handlers={404: dashboard.show_missing},
    )
    app.state.feeds = dashboard.feeds
    app.state.closing = dashboard.closing
    app.state.sessions = dashboard.sessions
    return app


class Dashboard:
    """Answers requests. A request needs a session; what it may see is decided by the controller."""

    def __init__(self, settings: DashboardSettings, port: int, key: str) -> None:
        self.feeds: ClusterFeeds | RunFeeds = (
            RunFeeds(settings.run_dir, key)
            if settings.run_dir
            else ClusterFeeds(settings.cluster_url, settings.cluster_certificate)
        )
        self.closing = threading.Event()
        self.sessions = Sessions()
        self._is_run = bool(settings.run_dir)
        self._secure = bool(settings.certificate)
        # Browsers send a cookie to every port of a host.
        self._cookie = f"elastane-{port}"
        self._static = {
            name: ((files(package) / name).read_bytes(), kind) for name, (package, kind) in STATIC.items()
        }

    # -- signing in ----------------------------------------------------------------------------------------

    async def show_sign_in(self, request: Request) -> Response:
        key = request.query_params.get("key", "")
        if self._is_run and key:
            # `elastane dashboard RUN` prints this address in the terminal of the person that started it.
            return await self._begin(request, key, "/")
        return self._render_sign_in(request, _read_next(request.query_params))

    async def sign_in(self, request: Request) -> Response:
        form = await read_form(request)
        return await self._begin(request, form.get("token", "").strip(), _read_next(form))

    async def _begin(self, request: Request, token: str, then: str) -> Response:
        try:
            await to_thread.run_sync(lambda: self.feeds.find(token))
        except ElastaneError as error:
            unknown = isinstance(error, BadInput)
            why = "This token is not known here." if unknown else error.what
            return self._render_sign_in(request, then, why, 403 if unknown else 502)
        answer = RedirectResponse(then, 303)
        answer.set_cookie(
            self._cookie, self.sessions.begin(token), httponly=True, samesite="strict", secure=self._secure
        )
        return answer

    async def sign_out(self, request: Request) -> Response:
        self.sessions.end(request.cookies.get(self._cookie, ""))
        answer = RedirectResponse("/sign-in", 303)
        answer.delete_cookie(self._cookie, httponly=True, samesite="strict", secure=self._secure)
        return answer

    def _render_sign_in(self, request: Request, then: str, why: str = "", status: int = 200) -> Response:
        template = find_environment().get_template("sign_in.html")
        return HTMLResponse(
            template.render(title="Sign in", why=why, then=then, is_run=self._is_run), status_code=status
        )

    # -- pages ---------------------------------------------------------------------------------------------

    async def show(self, request: Request) -> Response:
        session = self._find_session(request)
        if session is None:
            return self._ask_to_sign_in(request)
        try:
            return HTMLResponse(await to_thread.run_sync(self._render, request, session))
        except ElastaneError as error:
            return self._show_error(request, session, error)

    def _render(self, request: Request, session: Session, form: Form | None = None) -> str:
        feed = self._find_feed(session)
        if form is not None and isinstance(feed, ClusterFeed):
            content = build_policy_page(feed, form)
        else:
            content = build_page(feed, request.url.path, request.query_params)
        path, query = request.url.path, request.url.query
        around = {
            "path": path,
            "reader": describe_reader(feed),
            "live": f"/live{quote(path)}" + (f"?{query}" if query else "") if content.parts else "",
            "navigation": list_navigation(feed),
            "message": session.take_message(),
            "page_token": session.make_page_token,
        }
        return render_page(content, around)

    async def stream(self, request: Request) -> Response:
        session = self._find_session(request)
        if session is None:
            return Response(status_code=204)  # a browser does not open such a stream again
        path = "/" + request.path_params["path"]
        try:
            feed = await to_thread.run_sync(self._find_feed, session)
        except ElastaneError:
            return Response(status_code=503)

        def is_over() -> bool:
            return self.closing.is_set() or self._find_session(request) is not session

        return stream_page(feed, path, request.query_params, is_over)

    async def show_missing(self, request: Request, _: Exception) -> Response:
        session = self._find_session(request)
        if session is None:
            return self._ask_to_sign_in(request)
        return self._show_error(request, session, ElastaneError(f"there is no page {request.url.path}"), 404)

    def _show_error(
        self, request: Request, session: Session, error: ElastaneError, status: int = 0
    ) -> Response:
        if isinstance(error, RequestRefused) and error.problem.status == HTTPStatus.UNAUTHORIZED:
            return self._ask_to_sign_in(request)
        status = status or (404 if isinstance(error, NotFound | NoSuchRun) else 502)
        template = find_environment().get_template("error.html")
        page = template.render(
            title="Not found" if status == HTTPStatus.NOT_FOUND else "No answer",
            error=error,
            path=request.url.path,
            live="",
            reader="",
            message=(),
            navigation=(),
            page_token=session.make_page_token,
        )
        return HTMLResponse(page, status_code=status)

    def _ask_to_sign_in(self, request: Request) -> Response:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if request.headers.get("sec-fetch-site") == "cross-site":
            # A browser that follows a link on another site sends no strict cookie; it does on its second try.
            template = find_environment().get_template("again.html")
            return HTMLResponse(template.render(title="One moment", target=target))
        return RedirectResponse(f"/sign-in?{urlencode({'next': target})}", 303)

    def _find_feed(self, session: Session) -> ClusterFeed | RunFeed:
        return self.feeds.find(session.token)

    def _find_cluster_feed(self, session: Session) -> ClusterFeed:
        feed = self._find_feed(session)
        if isinstance(feed, ClusterFeed):
            return feed
        raise NoSuchRun("this dashboard shows one run, and no cluster")

    def _find_session(self, request: Request) -> Session | None:
        return self.sessions.find(request.cookies.get(self._cookie, ""))

    # -- changes -------------------------------------------------------------------------------------------

    async def change(self, request: Request) -> Response:
        session = self._find_session(request)
        if session is None:
            return self._ask_to_sign_in(request)
        form, path = await read_form(request), request.url.path
        job, action = request.path_params["job"], request.path_params["action"]
        if action not in CHANGES:
            return self._show_error(request, session, ElastaneError(f"nothing is called {action}"), 404)
        if not session.knows(path, form.get("page_token", "")):
            session.message = ("The request did not come from a page of this session; nothing was done.",)
            return RedirectResponse(f"/jobs/{quote(job)}", 303)
        session.message = await to_thread.run_sync(self._change, session, job, action, form)
        return RedirectResponse(f"/jobs/{quote(job)}", 303)

    def _change(self, session: Session, job: str, action: str, form: Form) -> tuple[str, ...]:
        try:
            return apply_change(self._find_cluster_feed(session), job, action, form)
        except ElastaneError as error:
            return tuple(filter(None, (error.what, error.means, error.do)))

    async def foresee(self, request: Request) -> Response:
        session = self._find_session(request)
        if session is None:
            return self._ask_to_sign_in(request)
        form = await read_form(request)
        if not session.knows("/policy", form.get("page_token", "")):
            return RedirectResponse("/policy", 303)
        try:
            return HTMLResponse(await to_thread.run_sync(self._render, request, session, form))
        except ElastaneError as error:
            return self._show_error(request, session, error)

    async def send_usage(self, request: Request) -> Response:
        session = self._find_session(request)
        if session is None:
            return self._ask_to_sign_in(request)
        try:
            name, content = await to_thread.run_sync(self._read_usage, session, request.query_params)
        except ElastaneError as error:
            return self._show_error(request, session, error)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type="text/csv; charset=utf-8", headers=headers)

    def _read_usage(self, session: Session, params: Mapping[str, str]) -> tuple[str, str]:
        return read_usage_csv(self._find_cluster_feed(session), params)

    # -- files ---------------------------------------------------------------------------------------------

    async def send_file(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        if found is None:
            return Response(status_code=404)
        content, kind = found
        return Response(content, media_type=kind, headers={"Cache-Control": "max-age=300"})


async def read_form(request: Request) -> Form:
    """Return the fields of a form, at most a megabyte of it."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_BODY_BYTES:
            return {}
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True, max_num_fields=100))


def _read_next(fields: Mapping[str, str]) -> str:
    """Return the page to show after signing in; an address that leads elsewhere counts as none."""
    then = fields.get("next", "/")
    plain = then.startswith("/") and not then.startswith(("//", "/\\")) and then.isprintable()
    return then if plain and "\\" not in then else "/"
