"""The size limit of bodies, which protects the controller's memory."""

from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elastane.cluster.controller.rest.problems import make_problem, make_problem_response


class TooLarge(Exception):
    pass


class SizeLimit:
    """Middleware that refuses larger bodies, by their announced or their received length."""

    def __init__(self, app: ASGIApp, largest: int) -> None:
        self._app = app
        self._largest = largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self._largest:
            await self._refuse(scope, receive, send)
            return
        taken = 0

        async def receive_and_count() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._largest:
                raise TooLarge
            return message

        try:
            await self._app(scope, receive_and_count, send)
        except TooLarge:
            # Bodies are read before an answer begins, so this one can still be sent.
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = make_problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"the body has more than {self._largest} bytes",
            means="nothing was done",
            do="send less; scripts and data are not sent to the controller",
        )
        await make_problem_response(refusal)(scope, receive, send)
