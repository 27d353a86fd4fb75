"""A list of objects that is read once and then followed by a watch, so that it costs little to look at."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Generic, TypeVar

import msgspec

from elastane.cluster.engines.kubernetes.api_server import ApiServer
from elastane.cluster.engines.kubernetes.pods import Metadata
from elastane.cluster.engines.kubernetes.refusals import GONE, ApiRefusal, decode_refusal
from elastane.cluster.nouns.agents import Away
from elastane.common.untrusted_data import Decoder, Malformed

PAGE = 500
MOST_PAGES = 1000
"""The most pages of a list: half a million objects."""
SHORT_S = 1.0
"""A watch that was shorter is not begun anew before this time has passed."""
T = TypeVar("T")


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: Annotated[str, msgspec.Meta(min_length=1)]
    continue_: str | None = msgspec.field(name="continue", default=None)


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Named(msgspec.Struct, frozen=True):
    metadata: Metadata


_decode_page: Decoder[_Page] = Decoder(_Page)
_decode_event: Decoder[_Event] = Decoder(_Event)
_decode_named: Decoder[_Named] = Decoder(_Named)


class FollowedList(Generic[T]):
    """The objects at a path.

    They are listed when they are first asked for, and again only after the API server has forgotten what
    happened since (410). Otherwise a watch continues where the last one ended. An object that cannot be read
    costs only itself.

    Args:
        params: select some of the objects.
        decode: returns what matters of an object; None: it does not count.
        keeps_removed: the last state of removed objects is kept until it is forgotten.
    """

    def __init__(
        self,
        server: ApiServer,
        path: str,
        params: Mapping[str, str],
        decode: Callable[[bytes], T | None],
        *,
        keeps_removed: bool = False,
    ) -> None:
        self._server = server
        self._path = path
        self._params = dict(params)
        self._decode = decode
        self._keeps_removed = keeps_removed
        self._version = ""
        self._items: dict[str, T] = {}
        self._removed: dict[str, T] = {}
        self._added: dict[str, T] | None = None
        """Objects that this client has created since the present list began; None: no list has begun."""
        self._task: asyncio.Task[Away] | None = None
        self._follows = asyncio.Event()

    @property
    def items(self) -> Mapping[str, T]:
        """The objects by ``NAMESPACE/NAME``, as far as the watch has told."""
        return self._items

    @property
    def removed(self) -> Mapping[str, T]:
        """The last state of the objects that the watch has seen removed, if they are kept."""
        return self._removed

    def forget(self, key: str) -> None:
        """Forget an object, because it is not there any more, or because its last state is not needed."""
        self._items.pop(key, None)
        self._removed.pop(key, None)

    def add(self, document: bytes) -> None:
        """Count an object that this client has created, before the watch tells of it."""
        with suppress(Malformed):
            key = _find_key(document)
            item = self._decode(document)
            # What the watch says is newer.
            if item is not None and key not in self._items and key not in self._removed:
                self._items[key] = item
                if self._added is not None:
                    # The list may have been made before.
                    self._added[key] = item

    async def refresh(self) -> Away | None:
        """Make sure that the list is complete, and that a watch follows it; return why neither can be."""
        if self._task is None or self._task.done():
            self._follows.clear()
            self._task = asyncio.create_task(self._follow())
        waiting = asyncio.create_task(self._follows.wait())
        try:
            done, _ = await asyncio.wait(
                {waiting, self._task}, timeout=self._server.answer_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            waiting.cancel()
        # A watch that was open may have ended since: then it was complete until now.
        if waiting in done:
            return None
        if self._task.done():
            return self._task.result()
        return Away(f"the API server has not listed {self._path} within {self._server.answer_s:g} s")

    async def close(self) -> None:
        """Follow the list no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _follow(self) -> Away:
        """List the objects if need be, and watch them until that fails; return why."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._version and (away := await self._list()) is not None:
                return away
            began_s = loop.time()
            if (away := await self._watch()) is not None:
                return away
            if loop.time() - began_s < SHORT_S:
                await asyncio.sleep(SHORT_S)

    async def _list(self) -> Away | None:
        """Read all pages, and replace the objects by them; return why that failed."""
        found: dict[str, T] = {}
        self._added = {}
        token = ""
        for _ in range(MOST_PAGES):
            params = {**self._params, "limit": str(PAGE)} | ({"continue": token} if token else {})
            answer = await self._server.get(self._path, params)
            if isinstance(answer, Away):
                return answer
            if isinstance(answer, ApiRefusal):
                return Away(f"the API server does not list {self._path}: {answer.words}")
            try:
                page = _decode_page(answer)
            except Malformed as error:
                return Away(f"a list of {self._path} cannot be read: {error}")
            for document in page.items or ():
                self._put(found, bytes(document))
            if not (token := page.metadata.continue_ or ""):
                self._items = {**self._added, **found}
                self._version, self._added = page.metadata.resource_version, None
                return None
        return Away(f"the API server lists more than {MOST_PAGES * PAGE} objects at {self._path}")

    async def _watch(self) -> Away | None:
        """Follow the objects until the watch ends; return None if another one can begin, else why not."""
        params = {**self._params, "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        async with self._server.watch(self._path, params) as lines:
            if isinstance(lines, Away):
                return lines
            if isinstance(lines, ApiRefusal):
                return self._judge_refusal(lines)
            self._follows.set()
            try:
                async for line in lines:
                    if line.strip() and (refusal := self._take(line)) is not None:
                        return self._judge_refusal(refusal)
            finally:
                self._follows.clear()
        return None

    def _judge_refusal(self, refusal: ApiRefusal) -> Away | None:
        if refusal.code == GONE:
            # The only reason for another list.
            self._version = ""
            return None
        return Away(f"the API server does not let {self._path} be watched: {refusal.words}")

    def _take(self, line: bytes) -> ApiRefusal | None:
        """Take one event of a watch; return the error that it may be."""
        try:
            event = _decode_event(line)
            document = bytes(event.object)
            if event.type == "ERROR":
                return decode_refusal(0, document)
            version = _decode_named(document).metadata.resource_version
        except Malformed:
            # It is lost, as its version is, so the next watch may bring it again.
            return None
        if event.type in ("ADDED", "MODIFIED"):
            self._put(self._items, document)
        elif event.type == "DELETED":
            self._remove(document)
        self._version = version or self._version
        return None

    def _put(self, items: dict[str, T], document: bytes) -> None:
        with suppress(Malformed):
            key = _find_key(document)
            item = self._decode(document)
            if item is not None:
                items[key] = item
            else:
                items.pop(key, None)

    def _remove(self, document: bytes) -> None:
        with suppress(Malformed):
            key = _find_key(document)
            item = self._decode(document)
            last = self._items.pop(key, None)
            if self._keeps_removed and (final := item or last) is not None:
                self._removed[key] = final


def _find_key(document: bytes) -> str:
    """Return the name of an object with its namespace."""
    metadata = _decode_named(document).metadata
    if not metadata.name:
        raise Malformed("it has no name")
    return f"{metadata.namespace}/{metadata.name}"
