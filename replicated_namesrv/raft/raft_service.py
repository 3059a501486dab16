"""RaftService: one node on an asyncio loop, with real files and sockets.

The node runs on the loop it is started on. Its work is divided into short steps (bounded batches of applied entries, one chunk
of a snapshot at a time), and fsync runs in threads. All events of one turn of the loop are answered together: one tick, one
write per peer, one fsync. Messages are written before the fsync is started, so a leader syncs its log while the followers sync
theirs.
"""

import asyncio
import gc
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random, SystemRandom
from typing import TypeVar

from replicated_namesrv.host_look_up import HostLookUp
from replicated_namesrv.raft.file_storage import FileStorage
from replicated_namesrv.raft.identity import is_member_on
from replicated_namesrv.raft.interfaces import FOREVER, Observer, Outcome, ReadOutcome, StateMachine, Work
from replicated_namesrv.raft.member_changes import MemberChange
from replicated_namesrv.raft.peer_names import name_at
from replicated_namesrv.raft.raft_config import RaftConfig
from replicated_namesrv.raft.raft_errors import TransportError
from replicated_namesrv.raft.raft_messages import Message
from replicated_namesrv.raft.raft_node import RaftNode
from replicated_namesrv.raft.transport import PeerTransport, TransportSettings

logger = logging.getLogger(__name__)

NAMES_PAUSE_SECONDS = 1.0
"""Pause before addresses without a name are asked again. It grows while none answers, up to NAMES_PAUSE_MAX_SECONDS."""
NAMES_PAUSE_MAX_SECONDS = 10.0
T = TypeVar("T")
TIMER_SECONDS = 0.001
"""The resolution of the loop's timers. A timer may fire earlier by this time. Then ``tick`` would find nothing to do yet, and a
second timer would be needed."""
SYNCER_STOP_SECONDS = 5.0
"""How long a stop waits for a sync in progress. A sync that hangs longer is left to its thread, because otherwise the process
could not end."""
AWAY_SECONDS = 0.1
"""If this much time has passed since the last tick, the loop may have stalled while two heartbeats arrived. An idle follower
ticks less often without a stall; then reading first costs two turns of the loop and changes nothing."""


class Syncer:
    """A thread that syncs in order and reports each completion on the loop."""

    def __init__(self, service: "RaftService", name: str) -> None:
        self._service = service
        self._requests: queue.SimpleQueue[tuple[int, Sequence[str], bool] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def request(self, token: int, names: Sequence[str], directory: bool) -> None:
        self._requests.put((token, names, directory))

    def stop(self) -> None:
        self._requests.put(None)
        self._thread.join(SYNCER_STOP_SECONDS)

    def _run(self) -> None:
        service = self._service
        while (request := self._requests.get()) is not None:
            token, names, directory = request
            error: BaseException | None = None
            try:
                service.storage.sync(names, directory)
            except Exception as caught:
                error = caught
            try:
                service.loop.call_soon_threadsafe(service.synced, token, error)
            except RuntimeError:
                return  # the loop is closed, so no caller waits for this sync any more


def _warn(reason: str) -> None:
    """Log a reason that may contain text of a stranger. It is an argument, because each format string has a throttle of its own
    (``admin/logs.py``)."""
    logger.warning("%s", reason)


class RaftService:
    """One node: ``await start()``, then propose and read from the same loop, ``await stop()``."""

    def __init__(
        self,
        settings: TransportSettings,
        data_directory: Path,
        state_machine: StateMachine,
        config: RaftConfig | None = None,
        observer: Observer | None = None,
        *,
        advertised: Mapping[str, tuple[str, int]] | None = None,
        joins: bool = False,
        dial: Mapping[str, tuple[str, int]] | None = None,
    ) -> None:
        """The configured members are the names in ``settings.addresses``. ``advertised``: the addresses of the members that the
        first MEMBERS entry records. Give it if this node dials some members at other addresses. ``joins``: a blank node joins a
        cluster. ``dial``: nodes that are dialled at these addresses whatever the log says. TransportError if settings contradict
        each other."""
        self._advertised = dict(settings.addresses if advertised is None else advertised)
        self._unnamed = {address: HostLookUp() for address in settings.unnamed}
        """Addresses of members whose names are not known yet."""
        self._naming: asyncio.Task[None] | None = None
        self._asks_names = False
        """Whether they are being asked for the first time."""
        self._address_problem: str | None = None
        self._joins, self._dial = joins, dial or {}
        self._group_version = 0
        self.settings, self._directory = settings, data_directory
        self._machine, self._config, self._observer = state_machine, config or RaftConfig(), observer or Observer()
        if settings.frame_bytes_max < self._config.message_bytes_max:
            raise TransportError(
                f"frame_bytes_max is {settings.frame_bytes_max} but messages may have {self._config.message_bytes_max} bytes: "
                "raise it, or lower command_bytes_max, entry_bytes_max, append_bytes_max or snapshot_slice_bytes"
            )
        self.rng: Random = SystemRandom()
        self.jitter = Random()
        self.now = boot_clock()
        self.transport = PeerTransport(settings, self._on_message, self._on_connected, self._on_disconnected, _warn)
        self.transport.on_arriving = lambda peer, size: self.node.on_arriving(peer, size)
        self.transport.accepts_strangers = lambda: self.node.group.accepts_strangers
        self.node: RaftNode
        self.storage: FileStorage
        self.loop: asyncio.AbstractEventLoop
        self._kicked: asyncio.Handle | None = None
        self._kicked_for_reads = False
        self._running = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._ran_at = 0.0
        self._reads_first = False
        self._sync_requests: list[tuple[int, Sequence[str], bool]] = []

    async def start(self) -> None:
        """Open the data directory (in a thread, because a long log takes seconds), bind and begin. Raises RaftNode's errors,
        and TransportError if the address cannot be bound."""
        self.loop = asyncio.get_running_loop()
        self.storage = FileStorage(self._directory)
        try:
            await self._learn_names()
        except BaseException:
            self.storage.close()
            raise
        authenticated = self.settings.secret is not None or self.transport.tls is not None
        self._config = replace(
            self._config,
            segment_bytes=min(self._config.segment_bytes, self.storage.segment_bytes_max),
            authenticated_peers=authenticated,
        )
        opening = self.loop.run_in_executor(None, self._open)
        try:
            self.node = await asyncio.shield(opening)
            await self.loop.run_in_executor(None, self.storage.fill_ballast)
            await self.transport.start()
        except BaseException:
            # A cancelled start does not stop the thread, which may write to the log. So the lock is kept until the thread ends:
            # otherwise another process could open the directory in the meantime.
            await asyncio.wait([opening])
            self.storage.close()
            raise
        if not authenticated:
            logger.warning("peers are not authenticated: bound to loopback %s only", self.settings.listen[0])
        self._log_syncer = Syncer(self, f"raft-log-sync-{self.settings.node_id}")
        self._snapshot_syncer = Syncer(self, f"raft-snapshot-sync-{self.settings.node_id}")
        self._running = True
        self._asks_names = bool(self._unnamed)
        self._follow_members()
        if self._unnamed:
            self._naming = self.loop.create_task(self._learn_other_names())
        self.kick()

    async def _learn_names(self) -> None:
        """Ask the nodes at the addresses without a name for their names, until one is known. With no name at all, a blank node
        would count as a cluster of its own. A node that was part of a cluster has the names in its log, and does not wait."""
        while self._unnamed and len(self._advertised) == 1 and not is_member_on(self.storage):
            reasons = await self._ask_names()
            if len(self._advertised) > 1:
                self.transport.set_peers(self.settings.addresses)
                return
            self._observer.waiting(
                f"no node of the cluster told its name ({', '.join(reasons)}); correct join, or start a member. To "
                "found a new cluster, give peers in place of join"
            )
            await asyncio.sleep(NAMES_PAUSE_SECONDS)

    async def _learn_other_names(self) -> None:
        """Ask the addresses that have not told a name yet, too. A named node becomes a peer. These nodes are needed until this
        node knows a leader, and until the log has the addresses of the members: without its address, this node cannot answer a
        leader."""
        pause_s = 0.0
        while self._unnamed and (self.node.group.is_searching or self.node.configuration.is_static):
            await asyncio.sleep(pause_s)
            before = set(self._advertised)
            await self._ask_names()
            if (learned := self._advertised.keys() - before) or self._asks_names:
                self._asks_names = False
                self.node.group.contact(learned)
                self._follow_members()
                self.kick()
            pause_s = NAMES_PAUSE_SECONDS if learned else min(2 * pause_s + NAMES_PAUSE_SECONDS, NAMES_PAUSE_MAX_SECONDS)

    async def _ask_names(self) -> list[str]:
        """Ask each address without a name once, and note the names. Returns why the others told none."""
        unnamed = list(self._unnamed)
        asked = (name_at(self.settings, *address, self._unnamed[address]) for address in unnamed)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        reasons = []
        for (host, port), answer in zip(unnamed, answers, strict=True):
            if not isinstance(answer, str):
                reasons.append(f"{host}:{port}: {answer or type(answer).__name__}")
            elif answer in self._advertised:
                reasons.append(f"{host}:{port}: it is named {answer}, too; choose another nodeId")
                if self._running:  # it is the address of this node, or a second one of a known node
                    del self._unnamed[host, port]
            else:
                self._advertised[answer] = host, port
                self.settings = replace(self.settings, addresses={answer: (host, port), **self.settings.addresses})
                del self._unnamed[host, port]
        return reasons

    def _follow_members(self) -> None:
        """Connect with the present peers, at the address in ``dial``, else in log or hint, else in the settings."""
        node, addresses = self.node, {}
        self._group_version = node.group.version
        for peer in node.peers:
            member = node.group.member(peer)
            known = self.transport.addresses.get(peer) or self.settings.addresses.get(peer)
            address = (member.host, member.port) if member is not None and member.host else known
            address = self._dial.get(peer, address)
            if address is not None:
                addresses[peer] = address
        self.transport.set_peers(addresses)
        self._note_unknown_addresses(sorted(set(node.peers) - addresses.keys() - node.group.leaving))

    def _note_unknown_addresses(self, peers: list[str]) -> None:
        before, self._address_problem = self._address_problem, None
        if peers and not self._asks_names:
            silent = ", ".join(f"{host}:{port}" for host, port in self._unnamed)
            remedy = (
                f"the nodes at {silent} have not told their names: start the nodes at these addresses"
                if silent
                else "give the addresses of all members in join, or set peers, and restart this node"
            )
            self._address_problem = f"no address of {', '.join(peers)} is known, so this node cannot answer it; {remedy}"
            if self._address_problem != before:
                _warn(self._address_problem)

    def _open(self) -> RaftNode:
        settings = self.settings
        collecting = gc.isenabled()
        # a long log makes millions of objects that stay; garbage collections would visit them again and again and free nothing
        gc.disable()
        try:
            return RaftNode(
                settings.node_id,
                self._advertised,
                settings.cluster_id,
                self,
                self.storage,
                self._machine,
                self._config,
                self._observer,
                self._joins,
            )
        finally:
            if collecting:
                gc.enable()

    async def stop(self) -> None:
        """End every proposal and read, close every connection. Idempotent."""
        if not self._running:
            return
        self._running = False
        if self._naming is not None:
            self._naming.cancel()
        self.node.stop()
        if self._timer:
            self._timer.cancel()
        await self.transport.stop()
        await self.loop.run_in_executor(None, self._stop_syncers)
        self.storage.close()

    def _stop_syncers(self) -> None:
        self._log_syncer.stop()
        self._snapshot_syncer.stop()

    # Callers

    def propose(self, command: bytes, timeout_ms: int | None = None, version: int = 0) -> "asyncio.Future[Outcome]":
        """Apply ``command`` once on every node and return the outcome; the Future never fails. ``version``: the command is
        rejected unless every member is known to apply commands of this version. 0: no check is needed."""
        future: asyncio.Future[Outcome] = self.loop.create_future()
        self.node.propose(command, _setter(future), timeout_ms, version)
        self.kick()
        return future

    def read_index(self) -> "asyncio.Future[ReadOutcome]":
        """Completes when the local state includes everything acknowledged before this call."""
        future: asyncio.Future[ReadOutcome] = self.loop.create_future()
        self.node.read_index(_setter(future))
        self.kick_for_reads()
        return future

    def disk_is_short(self, short: bool) -> None:
        """True: the disk is nearly full, so keep the log short. False: it has room again, so refill the ballast."""
        self.node.compaction.disk_is_short(short)
        if not short:
            self.loop.run_in_executor(None, self.storage.fill_ballast)

    def lease_valid(self) -> bool:
        """Whether the local state may be read now without asking other nodes."""
        return self.node.lease_valid()

    def transfer_leadership(self, peer: str | None = None) -> "asyncio.Future[bool]":
        """Transfer leadership to ``peer``, or to the follower with the longest log. Returns whether another node leads now."""
        future: asyncio.Future[bool] = self.loop.create_future()
        self.node.transfer_leadership(peer, _setter(future))
        self.kick()
        return future

    def change_member(self, change: MemberChange) -> "asyncio.Future[Outcome]":
        """Add, remove, promote or move a member. Only on the leader; another node refuses, and names the leader."""
        future: asyncio.Future[Outcome] = self.loop.create_future()
        self.node.change_member(change, _setter(future))
        self.kick()
        return future

    def tell(self, peer: str, data: bytes) -> None:
        """Send ``data`` to the user of ``peer`` (``Observer.received``); lost without a connection."""
        self.node.tell(peer, data)
        self.kick_for_reads()

    def status(self) -> dict[str, object]:
        """JSON-able: node and transport."""
        status = self.node.status()
        problem = status["problem"] or self._address_problem
        return {**status, "problem": problem, "transport": self.transport.status()}

    def contacts(self) -> dict[str, object]:
        """The parts of ``status`` about the connections with the peers. Unlike ``status``, this costs little and does not renew
        the lease."""
        peers = {peer: self.node.membership.status_of(peer) for peer in self.node.peers}
        return {"peers": peers, "transport": self.transport.status()}

    # Environment of the node

    def send(self, peer: str, message: Message) -> None:
        self.transport.send(peer, message)

    def request_sync(self, token: int, names: Sequence[str], directory: bool) -> None:
        self._sync_requests.append((token, names, directory))

    def synced(self, token: int, error: BaseException | None) -> None:
        """A sync has completed, or failed."""
        if error is None:
            self.node.on_synced(token)
        else:
            self.node.on_sync_failed(token, error)
        self._run()

    # Events

    def _on_message(self, peer: str, message: Message) -> None:
        work = self.node.on_message(peer, message)
        if work is Work.TICK:
            self.kick()
        elif work is Work.READS or self.transport.has_unsent:
            self.kick_for_reads()

    def _on_connected(self, peer: str) -> None:
        self.node.on_connected(peer)
        self.kick()

    def _on_disconnected(self, peer: str) -> None:
        self.node.on_disconnected(peer)
        self.kick()

    def kick(self) -> None:
        """Tick once in the next turn of the loop, for all events of this turn."""
        if not self._kicked and self._running:
            self._kicked = self.loop.call_soon(self._kicked_run)

    def _kicked_run(self) -> None:
        self._kicked = None
        self._run()

    def kick_for_reads(self) -> None:
        """Like ``kick``, after events that concern only reads and the application. So even a busy node confirms reads in every
        turn of the loop."""
        if not (self._kicked or self._kicked_for_reads) and self._running:
            self._kicked_for_reads = True
            self.loop.call_soon(self._run_reads)

    def _run_reads(self) -> None:
        self._kicked_for_reads = False
        if not self._running or self._kicked:
            return
        self.node.tick_reads()
        self.transport.flush()
        wake_at = self.node.next_read_wakeup()
        if wake_at < FOREVER:
            self._wake_at(wake_at)

    def _timed_run(self) -> None:
        self._timer = None
        self._run()

    def _run(self) -> None:
        if not self._running:
            return
        now = self.now()
        if now - self._ran_at > AWAY_SECONDS and not self._reads_first:
            # A stall of the loop also delayed reading, so messages of the leader may wait in the sockets. The loop reads them
            # before it calls this again.
            self._reads_first = True
            self.loop.call_soon(self.loop.call_soon, self._run)
            return
        self._ran_at, self._reads_first = now, False
        if self._kicked:
            # This tick includes those events. The next one has to come after the callers that this one wakes: their new proposals
            # then travel with the news of the commit.
            self._kicked.cancel()
            self._kicked = None
        self.node.tick()
        if self.node.group.version != self._group_version:
            self._follow_members()
        self.transport.flush()
        if self._sync_requests:
            self._start_syncs()
        self._wake_at(self.node.next_wakeup())

    def _wake_at(self, wake_at: float) -> None:
        if wake_at <= self.now():
            self.kick()
        elif self._timer is None or wake_at < self._timer_at - 0.001:
            if self._timer:
                self._timer.cancel()
            self._timer_at = wake_at
            self._timer = self.loop.call_later(wake_at - self.now() + TIMER_SECONDS, self._timed_run)

    def _start_syncs(self) -> None:
        requests, self._sync_requests = self._sync_requests, []
        for token, names, directory in requests:
            is_log = any(name.startswith("log-") for name in names)
            (self._log_syncer if is_log else self._snapshot_syncer).request(token, names, directory)


def boot_clock() -> Callable[[], float]:
    """A clock that continues while the machine is suspended, if there is one: a lease must not outlive a long sleep."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boot_time is None else partial(time.clock_gettime, boot_time)


def _setter(future: "asyncio.Future[T]") -> Callable[[T], None]:
    """A function that completes ``future``, unless it was cancelled."""

    def done(outcome: T) -> None:
        if not future.done():
            future.set_result(outcome)

    return done
