"""A controller's API on loopback that can be stopped, and whose answers can be lost."""

import asyncio
import threading
import time

import uvicorn

from elastane.cluster.controller.rest.app import build_application
from elastane.cluster.controller.rest.context import Controller, Rate, Settings
from elastane.cluster.controller.server import configure_server
from elastane.cluster.controller.store import tokens
from elastane.cluster.controller.store.tokens import compute_digest, generate_secret, generate_token_id
from elastane.cluster.nouns.controller import ControllerSettings
from elastane.cluster.nouns.plans import Plan
from elastane.cluster.nouns.tokens import NewToken
from tests.waiting import wait_until

UNHURRIED = Settings(per_token=Rate(per_s=1e6, burst=10**6), per_address=Rate(per_s=1e6, burst=10**6))


class ControllerServer:
    """Serves the API over a store, in a thread.

    Args of the faults:
        lost_replies: so many of the next claims are carried out, and their connections cut.
        silent_replies: so many of the next claims are carried out, and never answered.
        statuses: of the answers to the next requests, which are not carried out.
    """

    def __init__(self, store):
        self.store = store
        self.lost_replies = self.silent_replies = 0
        self.statuses = []
        controller = Controller(
            store, wake=lambda: None, plan=lambda _: Plan(), explain=lambda *_: (), settings=UNHURRIED
        )
        self._app = build_application(controller)
        self.port, self._server = 0, None
        self.start()
        self.url = f"http://127.0.0.1:{self.port}"

    def make_token(self, role="submitter", team="vision", user="ada"):
        secret = generate_secret()
        with self.store.begin_write() as tx:
            new = NewToken(user=user, role=role, team=team)
            tokens.insert_token(tx, generate_token_id(), compute_digest(secret), new, time.time())
        return secret

    def start(self):
        config = configure_server(self._answer, ControllerSettings(home="", store=""))
        config.port, config.lifespan, config.interface = self.port, "off", "asgi3"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        wait_until(lambda: self._server.started, "the server listens")
        self.port = self._server.servers[0].sockets[0].getsockname()[1]

    def stop(self):
        if self._server is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = None

    async def _answer(self, scope, receive, send):
        if self.statuses:
            await send({"type": "http.response.start", "status": self.statuses.pop(0)})
            await send({"type": "http.response.body"})
            return
        faults = (self.lost_replies, self.silent_replies) if scope["method"] == "POST" else (0, 0)
        if not any(faults):
            await self._app(scope, receive, send)
            return

        async def lose(message):
            pass

        await self._app(scope, receive, lose)
        if faults[0]:
            self.lost_replies -= 1
            # The connection ends within the answer.
            await send(
                {"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"99")]}
            )
            return
        self.silent_replies -= 1
        await asyncio.sleep(60)  # not a wait: there is no answer
