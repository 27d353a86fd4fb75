"""The signed-in browsers: a secret in a cookie for each, and a token for each form of a page."""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

IDLE_S = 12 * 3600.0
"""A session ends after this time without a request."""
MOST_SESSIONS = 2000


@dataclass
class Session:
    """One signed-in browser.

    Args:
        token: of the API, with which this dashboard asks for it.
        used_s: of the last request, on the monotonic clock.
        message: shown on the next page, once.
        key: of the tokens of its pages.
    """

    token: str
    used_s: float
    message: tuple[str, ...] = ()
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32))

    def make_page_token(self, path: str) -> str:
        """Return the token that a form on a page sends to this path; no other page or site knows it."""
        return hmac.new(self.key, path.encode(), hashlib.sha256).hexdigest()

    def knows(self, path: str, page_token: str) -> bool:
        return hmac.compare_digest(self.make_page_token(path).encode(), page_token.encode())

    def take_message(self) -> tuple[str, ...]:
        message, self.message = self.message, ()
        return message


class Sessions:
    """The sessions by the secrets of their cookies."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[str, Session] = {}
        self._lock = threading.Lock()

    def begin(self, token: str) -> str:
        """Begin a session, and return the secret of its cookie; the longest idle one gives way to it."""
        secret = secrets.token_urlsafe(32)
        with self._lock:
            if len(self._found) >= MOST_SESSIONS:
                del self._found[min(self._found, key=lambda name: self._found[name].used_s)]
            self._found[_hide(secret)] = Session(token, self._clock())
        return secret

    def find(self, secret: str) -> Session | None:
        """Return the session of a cookie; None: there is none, or it was idle for too long."""
        now_s = self._clock()
        with self._lock:
            session = self._found.get(_hide(secret))
            if session is None:
                return None
            if now_s - session.used_s > IDLE_S:
                del self._found[_hide(secret)]
                return None
            session.used_s = now_s
            return session

    def end(self, secret: str) -> None:
        with self._lock:
            self._found.pop(_hide(secret), None)


def _hide(secret: str) -> str:
    # A search by the secret itself could tell by its time how many characters are right.
    return hashlib.sha256(secret.encode()).hexdigest()
