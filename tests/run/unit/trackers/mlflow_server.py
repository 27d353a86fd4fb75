"""A small server with the routes of MLflow's REST API that our store uses, for tests; it can lose answers.

It keeps every point that it takes, so a point that was sent twice is there twice, as in a store of files.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from urllib.parse import parse_qs, urlsplit

Body = dict[str, object]


class RunsOfMLflow:
    """The experiments and runs of a server.

    Attributes:
        runs: by id: their info, tags, parameters and all points in the order of their arrival.
        lose: numbers of the requests, from 0, after which the connection ends without an answer.
        requests: the paths of all requests.
    """

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, list[Body]]] = {}
        self.lose: set[int] = set()
        self.requests: list[str] = []
        self.numbers = count()
        self.lock = threading.Lock()
        self.answers: dict[str, Callable[[Body], Body]] = {
            "experiments/get-by-name": self.find_experiment,
            "experiments/create": self.create_experiment,
            "runs/search": self.search_runs,
            "runs/create": self.create_run,
            "runs/get": lambda body: {"run": self.describe(str(body["run_id"]))},
            "runs/update": self.update_run,
            "runs/log-batch": self.log_batch,
        }

    def find_experiment(self, body: Body) -> Body:
        name = str(body["experiment_name"])
        return {"experiment": {"experiment_id": self.experiments[name], "name": name}}

    def create_experiment(self, body: Body) -> Body:
        return {"experiment_id": self.experiments.setdefault(str(body["name"]), "7")}

    def search_runs(self, body: Body) -> Body:
        wanted = str(body["filter"]).split("'")[1]
        found = [key for key, run in self.runs.items() if wanted in [tag["value"] for tag in run["tags"]]]
        return {"runs": [self.describe(key) for key in found]}

    def create_run(self, body: Body) -> Body:
        key = f"run{len(self.runs)}"
        info = {"run_id": key, "run_uuid": key, "experiment_id": "7", "status": "RUNNING"}
        self.runs[key] = {"info": [info], "tags": [*body["tags"]], "params": [], "points": []}
        return {"run": self.describe(key)}

    def update_run(self, body: Body) -> Body:
        info = self.runs[str(body["run_id"])]["info"]
        info[0] = info[0] | {"status": body["status"]}
        return {"run_info": info[0]}

    def log_batch(self, body: Body) -> Body:
        run = self.runs[str(body["run_id"])]
        run["points"] += body.get("metrics", [])
        run["params"] += body.get("params", [])
        return {}

    def describe(self, key: str) -> Body:
        run = self.runs[key]
        newest: dict[object, Body] = {}
        for point in run["points"]:
            if int(point["step"]) >= int(newest.get(point["key"], point)["step"]):
                newest[point["key"]] = point
        data = {"metrics": [*newest.values()], "params": run["params"], "tags": run["tags"]}
        return {"info": run["info"][0], "data": data}


@contextmanager
def serve_mlflow() -> Iterator[tuple[str, RunsOfMLflow]]:
    """Serve until the end of the block; yield the address and what the server keeps."""
    kept = RunsOfMLflow()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply({name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()})

        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        do_PATCH = do_POST  # noqa: N815

        def reply(self, body: Body) -> None:
            route = urlsplit(self.path).path.partition("/mlflow/")[2]
            with kept.lock:
                number = next(kept.numbers)
                kept.requests.append(route)
                try:
                    answer, status = kept.answers[route](body), 200
                except KeyError:
                    answer, status = {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": route}, 404
            if number in kept.lose:
                self.close_connection = True
                return
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", kept
        finally:
            server.shutdown()
            thread.join()
