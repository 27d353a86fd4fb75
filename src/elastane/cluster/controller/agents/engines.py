"""The declared engines: opened, asked all at once, and each within a time, so that none holds up another."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from elastane.cluster.nouns.agents import AgentAsk, AgentEnd, AgentEngine, Away, SeenAgent, StartRefusal
from elastane.cluster.nouns.config import Config, DeclaredEngine
from elastane.cluster.nouns.engine import ObservedNode
from elastane.common.errors import BadInput, ElastaneError
from elastane.common.safe_text import escape_line

ANSWER_S = 10.0
"""How long an engine may take to answer a question, or to carry out a request for one agent."""
EACH_S = 1.0
"""How much longer for each further agent of a request."""

T = TypeVar("T")
OpenEngine = Callable[[DeclaredEngine, str], AgentEngine]
"""Opens a declared engine, for the agents of the cluster with this id."""

logger = logging.getLogger(__name__)


class Engines:
    """The declared engines; ``open_engine`` raises `BadInput` if a declaration cannot be used here."""

    def __init__(self, open_engine: OpenEngine) -> None:
        self._open_engine = open_engine
        self._opened: dict[str, tuple[DeclaredEngine, AgentEngine]] = {}
        self._away: dict[str, str] = {}
        self._unknown: dict[str, frozenset[str]] = {}

    async def update(self, config: Config, cluster: str) -> None:
        """Open the engines that are newly declared, and close those that are not declared any more."""
        declared = {engine.name: engine for engine in config.engines or ()}
        self._away = {name: why for name, why in self._away.items() if name in declared}
        for name, (document, engine) in list(self._opened.items()):
            if declared.get(name) != document:
                del self._opened[name]
                await engine.close()
        for name, document in declared.items():
            if name not in self._opened:
                try:
                    self._opened[name] = document, self._open_engine(document, cluster)
                except BadInput as error:
                    self._report(name, str(error))

    def explain_absence(self, name: str) -> str:
        """Return why an engine takes no requests now; empty: it does."""
        missing = "" if name in self._opened else "it is not declared"
        return self._away.get(name, missing)

    def list_away(self) -> tuple[str, ...]:
        """Return the names of the engines that did not answer when they were last asked."""
        return tuple(sorted(name for name, why in self._away.items() if why))

    async def list_agents(self) -> Mapping[str, Sequence[SeenAgent]]:
        """Return the agents of each engine that has answered completely, by its name."""
        found = await self._ask_all(lambda _, engine: engine.list_agents())
        complete: dict[str, Sequence[SeenAgent]] = {}
        for name, answer in found.items():
            self._report(name, answer.why if isinstance(answer, Away) else "")
            if not isinstance(answer, Away):
                complete[name] = answer
        return complete

    async def list_nodes(
        self, config: Config, before: Iterable[ObservedNode], held: Mapping[tuple[str, str], int]
    ) -> list[ObservedNode]:
        """Return the machines in the pools of all engines, named ``ENGINE.NODE``.

        Args:
            before: what was known last. It stays so for an engine that does not answer: the jobs there go on.
            held: the devices that agents hold, by machine and pool. A machine that its engine does not list
                any more has those only: nothing begins there, and the jobs there go on.
        """
        pools = {
            name: {pool.name: pool.options for pool in config.pools or () if pool.engine == name}
            for name in self._opened
        }
        known, nodes = tuple(before), list[ObservedNode]()
        found = await self._ask_all(lambda name, engine: engine.list_nodes(pools[name]))
        for name, answer in found.items():
            last = [node for node in known if node.name.startswith(f"{name}.") and node.pool in pools[name]]
            if isinstance(answer, Away):
                nodes += last
                continue
            seen = [
                ObservedNode(name=f"{name}.{node.name}", pool=node.pool, devices=node.devices)
                for node in answer
            ]
            listed = {node.name for node in seen}
            for node in last:
                devices = held.get((node.name, node.pool), 0)
                # One that has had none before is left out: no engine sees it.
                if node.name not in listed and (devices or node.devices):
                    seen.append(msgspec.structs.replace(node, devices=devices))
            nodes += seen
        return nodes

    async def start_agents(self, name: str, asks: Sequence[AgentAsk]) -> Mapping[str, StartRefusal]:
        """Ask one engine for agents; return why some were not started, by id."""
        if why := self.explain_absence(name):
            return {ask.id: StartRefusal(why) for ask in asks}
        answer = await _wait(self._opened[name][1].start_agents(asks), len(asks))
        return {ask.id: StartRefusal(answer.why) for ask in asks} if isinstance(answer, Away) else answer

    async def end_agents(self, ends: Mapping[str, Sequence[AgentEnd]]) -> None:
        """Ask engines, by their names, to end agents; what fails is logged, because it is asked again."""

        async def end(name: str, some: Sequence[AgentEnd]) -> None:
            if self.explain_absence(name):
                return
            answer = await _wait(self._opened[name][1].end_agents(some), len(some))
            failed = {"its agents": answer.why} if isinstance(answer, Away) else answer
            for id_, why in failed.items():
                logger.info("engine %s does not end %s now: %s", name, id_, escape_line(why))

        await asyncio.gather(*(end(name, some) for name, some in ends.items() if some))

    def list_strangers(
        self, seen: Mapping[str, Sequence[SeenAgent]], known: Iterable[str]
    ) -> dict[str, list[AgentEnd]]:
        """Return the agents of this cluster that engines show for the second time, and that it does not know.

        A controller that was replaced by a backup of its store has left them.

        Args:
            seen: what the engines show now.
            known: ids of the agents that have not ended.
        """
        own = frozenset(known)
        found: dict[str, list[AgentEnd]] = {}
        for name, agents in seen.items():
            unknown = frozenset(agent.id for agent in agents if agent.state != "gone") - own
            found[name] = [
                AgentEnd(id_, 0.0) for id_ in sorted(unknown & self._unknown.get(name, frozenset()))
            ]
            self._unknown[name] = unknown
        return found

    async def close(self) -> None:
        """Close the engines; agents go on."""
        for _, engine in self._opened.values():
            await engine.close()

    async def _ask_all(self, ask: Callable[[str, AgentEngine], Awaitable[T | Away]]) -> dict[str, T | Away]:
        names = list(self._opened)
        answers = await asyncio.gather(*(_wait(ask(name, self._opened[name][1])) for name in names))
        return dict(zip(names, answers, strict=True))

    def _report(self, name: str, why: str) -> None:
        """Log that an engine is away, or answers again, when that changes."""
        before = self._away.get(name, "")
        self._away[name] = why
        if why and not before:
            logger.warning("engine %s is away, so nothing is started there: %s", name, escape_line(why))
        elif before and not why:
            logger.info("engine %s answers again", name)


async def _wait(answer: Awaitable[T | Away], agents: int = 0) -> T | Away:
    """Return the answer of an engine. A failure of the engine is `Away` too."""
    patience_s = ANSWER_S + EACH_S * agents
    try:
        async with asyncio.timeout(patience_s):
            return await answer
    except TimeoutError:
        return Away(f"it did not answer within {patience_s:g} s")
    except (ElastaneError, OSError) as error:
        return Away(str(error))
