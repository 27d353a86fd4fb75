"""A small server with the parts of W&B's API that its client needs to upload the rows of a run, for tests."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
OWNER = {"id": "owner", "name": "ada"}
HISTORY = "wandb-history.jsonl"


class RunsOfWandb:
    """What a server keeps: the rows of each run as texts, by the id of the run."""

    def __init__(self) -> None:
        self.rows: dict[str, list[str]] = {}

    def answer_query(self, query: str, variables: Body) -> Body:
        project = {"id": "project", "name": "elastane", "entity": OWNER}
        rows = self.rows.get(variables.get("name", ""))
        if "upsertBucket" in query:
            names = {"id": "bucket", "name": variables["name"], "displayName": "", "config": "{}"}
            bucket = names | {"project": project, "historyLineCount": len(rows or ())}
            return {"upsertBucket": {"bucket": bucket, "inserted": rows is None}}
        if "missingOk" in query:
            return {"model": project | {"bucket": self.describe(variables["name"]) if rows else None}}
        if "createRunFiles" in query:
            return {"createRunFiles": {"runID": "bucket", "uploadHeaders": [], "files": []}}
        if "viewer" in query:
            return {"viewer": OWNER | {"entity": "ada", "flags": "{}", "teams": {"edges": []}}}
        return {}

    def describe(self, run: str) -> Body:
        """Return what a client that resumes a run wants to know."""
        rows = self.rows[run]
        counts = {"historyLineCount": len(rows), "logLineCount": 0, "eventsLineCount": 0}
        texts = {"historyTail": json.dumps(rows[-1:]), "eventsTail": "[]", "summaryMetrics": "{}"}
        about = {"id": "bucket", "name": run, "displayName": run, "config": "{}", "tags": []}
        return about | counts | texts | {"wandbConfig": '{"t": 1}'}

    def receive_files(self, run: str, files: Body) -> None:
        if HISTORY in files:
            first, content = files[HISTORY]["offset"], files[HISTORY]["content"]
            self.rows.setdefault(run, [])[first : first + len(content)] = content


@contextmanager
def serve_wandb() -> Iterator[tuple[str, RunsOfWandb]]:
    """Serve until the end of the block; yield the address and what the server keeps."""
    kept = RunsOfWandb()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                text = gzip.decompress(text)
            if self.path.endswith("/file_stream"):
                kept.receive_files(self.path.split("/")[-2], json.loads(text).get("files") or {})
                self.reply({"exitcode": None, "limits": {}})
            elif self.path.startswith("/graphql"):
                body = json.loads(text)
                self.reply({"data": kept.answer_query(body["query"], body.get("variables") or {})})
            else:
                self.reply({})

        def do_GET(self) -> None:
            self.reply({})

        def reply(self, body: Body) -> None:
            text = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", kept
        finally:
            server.shutdown()
            thread.join()
