"""An S3 server on loopback whose requests can fail, with atomic conditional creates as those of S3."""

import logging
import re
import socket
import threading

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server


class FaultyServer:
    """A server of moto with faults, in a thread.

    Args of the faults:
        away: every request is answered by 503.
        denied: a pattern; writes of objects whose paths it fits are answered by 403.
        ignores_conditions: the header If-None-Match is dropped.
        refuses_conditions: a request with that header is answered by 501.
        lost_replies: so many of the next writes are carried out, and their connections cut.
        silent_replies: so many of the next writes are carried out, and never answered.
        conflicts: so many of the next writes are answered by 409, as S3 does to concurrent ones.
    """

    def __init__(self):
        logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
        self._app = DomainDispatcherApplication(create_backend_app)
        self._writing = threading.Lock()
        self._healed = threading.Event()
        self.heal()
        self._server = make_server("127.0.0.1", 0, self._answer, True, request_handler=MotoRequestHandler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def heal(self):
        self._healed.set()
        self._healed = threading.Event()
        self.denied = ""
        self.away = self.ignores_conditions = self.refuses_conditions = False
        self.lost_replies = self.silent_replies = self.conflicts = 0

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ, start_response):
        conditional = "HTTP_IF_NONE_MATCH" in environ
        if self.away:
            return _refuse(start_response, "503 Service Unavailable", "ServiceUnavailable")
        if environ["REQUEST_METHOD"] != "PUT":
            return self._app(environ, start_response)
        if self.denied and re.search(self.denied, environ["PATH_INFO"]):
            return _refuse(start_response, "403 Forbidden", "AccessDenied")
        if conditional and self.refuses_conditions:
            return _refuse(start_response, "501 Not Implemented", "NotImplemented")
        if conditional and self.ignores_conditions:
            del environ["HTTP_IF_NONE_MATCH"]
        if self.conflicts:
            self.conflicts -= 1
            return _refuse(start_response, "409 Conflict", "ConditionalRequestConflict")
        # moto looks and writes in two steps.
        with self._writing:
            answer = list(self._app(environ, start_response))
        if self.lost_replies:
            self.lost_replies -= 1
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        if self.silent_replies:
            self.silent_replies -= 1
            self._healed.wait()
        return answer


def _refuse(start_response, status, code):
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]
