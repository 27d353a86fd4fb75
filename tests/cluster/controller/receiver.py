"""A service on loopback that gets the messages of notification targets, as apprise sends them to ``json://``."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class Receiver:
    """A service with a state that tests set.

    Attributes:
        status: of its answers.
        messages: title and text of each request that has arrived.
        may_answer: requests wait for it.
    """

    def __init__(self) -> None:
        self.status = 200
        self.messages: list[tuple[str, str]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.messages.append((body["title"], body["message"]))
                receiver.may_answer.wait()
                try:
                    self.send_response(receiver.status)
                    # A service must not lead to another host.
                    self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                    self.end_headers()
                except OSError:
                    # The process that sent it was killed.
                    return

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
