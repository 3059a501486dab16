"""A list of name servers, used as RocketMQ's clients use theirs (``NettyRemotingClient.getAndCreateNameserverChannel``).

- The list is shuffled when it is set. A client keeps the chosen server while its connection is up. Any answer is accepted, even
  an error code: it does not make the client choose another server. Only a broken connection, a refused connection or a time-out
  makes a client choose another server.
- One call goes through the whole list at most once, as 4.9 does for servers that refuse connections. With ``attempts=1`` the call
  fails as in 5.x, and only the next call uses another server.
- ``query`` is for requests that may be repeated: it also tries the next server after a time-out. ``submit`` is for the others: it
  tries the next server only if the one before certainly did not get the request. Otherwise it reports that the outcome is
  unknown.
- ``ask_all`` (for comparisons) and ``send_to_all`` (for writes, as mqadmin does) use every server and return the outcome of each.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from replicated_namesrv.client.remoting import DEFAULT_TIMEOUT_MS, RemotingClient, RemotingCommand, parse_address
from replicated_namesrv.errors import NamesrvError, SettingError, UnavailableError

ADDRESSES_MAX = 64
"""Maximum number of addresses in one list."""


class ServerAnswer(NamedTuple):
    """An answer and the server that gave it."""

    address: str
    response: RemotingCommand


class RequestOutcome(NamedTuple):
    """The outcome of one request to one server: exactly one of ``response`` and ``error`` is set."""

    address: str
    response: RemotingCommand | None
    error: NamesrvError | None

    def answer(self) -> RemotingCommand:
        """The answer; raises ``error`` if there is none."""
        if self.error is not None:
            raise self.error
        assert self.response is not None
        return self.response


def parse_addresses(text: str) -> tuple[str, ...]:
    """Split ``host:port;host:port`` (RocketMQ's form; commas are accepted, too), without repetitions.

    Raises SettingError naming the part that is not an address.
    """
    parts = [part.strip() for part in text.replace(",", ";").split(";")]
    addresses = tuple(dict.fromkeys(part for part in parts if part))
    if not addresses:
        raise SettingError(f"name server list {text!r} has no address: give host:port, several separated by ';'")
    if len(addresses) > ADDRESSES_MAX:
        raise SettingError(f"name server list has {len(addresses)} addresses: at most {ADDRESSES_MAX}")
    for address in addresses:
        parse_address(address)
    return addresses


class NameServers:
    """An address list and the choice among it. Several calls may run at once; they share the choice."""

    def __init__(
        self,
        addresses: Sequence[str],
        client: RemotingClient,
        *,
        rng: random.Random,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        attempts: int | None = None,
    ) -> None:
        """``timeout_ms`` bounds each attempt. ``attempts``: servers tried in one call, None for the whole list."""
        self.client = client
        self.timeout_ms = timeout_ms
        self._attempts = attempts
        self._rng = rng
        self._order: list[str] = []
        self._next = 0
        self._chosen: str | None = None
        self.update_addresses(addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses, sorted."""
        return tuple(sorted(self._order))

    @property
    def chosen(self) -> str | None:
        """The server that answered last, while it is in use."""
        return self._chosen

    def update_addresses(self, addresses: Sequence[str]) -> None:
        """Take a new list. A list with the same members has no effect. If the new list lacks the chosen server, another one is
        chosen."""
        if not addresses:
            raise SettingError("the name server list is empty: give at least one host:port")
        if set(addresses) == set(self._order):
            return
        self._order = list(dict.fromkeys(addresses))
        self._rng.shuffle(self._order)
        self._next = self._rng.randrange(len(self._order))
        if self._chosen is not None and self._chosen not in self._order:
            self.client.disconnect(self._chosen)
            self._chosen = None

    async def query(self, request: RemotingCommand, timeout_ms: int | None = None) -> ServerAnswer:
        """Ask one server, moving on through the list until one answers.

        Raises UnavailableError, or OutcomeUnknownError if one of those tried may have got the request.
        """
        return await self._call(request, timeout_ms, repeatable=True)

    async def submit(self, request: RemotingCommand, timeout_ms: int | None = None) -> ServerAnswer:
        """As ``query``, for a request that must not be given to a second server while the first may have applied it."""
        return await self._call(request, timeout_ms, repeatable=False)

    async def _call(self, request: RemotingCommand, timeout_ms: int | None, *, repeatable: bool) -> ServerAnswer:
        failures: list[NamesrvError] = []
        for address in self._candidates():
            try:
                response = await self.client.request(address, request, timeout_ms or self.timeout_ms)
            except NamesrvError as error:
                self._move_on(address)
                failures.append(error)
                if not repeatable and not error.definite:
                    raise
            else:
                if address in self._order:  # the list may have changed while the server answered
                    self._chosen = address
                return ServerAnswer(address, response)
        raise _no_answer(failures)

    def _candidates(self) -> Iterator[str]:
        if self._chosen is not None and self.client.is_connected(self._chosen):
            self._next = self._order.index(self._chosen)
        order, first = list(self._order), self._next
        for step in range(min(len(order), self._attempts or len(order))):
            yield order[(first + step) % len(order)]

    def _move_on(self, address: str) -> None:
        if self._chosen == address:
            self._chosen = None
        if self._order[self._next % len(self._order)] == address:
            self._next = (self._next + 1) % len(self._order)

    async def ask_all(self, request: RemotingCommand, addresses: Sequence[str] | None = None) -> tuple[RequestOutcome, ...]:
        """Send the same request to all servers (or to ``addresses``) at the same time. The outcomes are in the order of the
        servers.
        """
        asked = (self._outcome(address, request) for address in (self.addresses if addresses is None else addresses))
        return tuple(await asyncio.gather(*asked))

    async def send_to_all(self, request: RemotingCommand, addresses: Sequence[str] | None = None) -> tuple[RequestOutcome, ...]:
        """Send a write to every server (or to ``addresses``), one after the other as mqadmin does; a failure at one does not
        prevent the others."""
        asked = self.addresses if addresses is None else addresses
        return tuple([await self._outcome(address, request) for address in asked])

    async def _outcome(self, address: str, request: RemotingCommand) -> RequestOutcome:
        try:
            return RequestOutcome(address, await self.client.request(address, request, self.timeout_ms), None)
        except NamesrvError as error:
            return RequestOutcome(address, None, error)


def _no_answer(failures: Sequence[NamesrvError]) -> NamesrvError:
    text = "no name server answered: " + "; ".join(str(failure) for failure in failures)
    unknown = next((failure for failure in failures if not failure.definite), None)
    return type(unknown)(text) if unknown is not None else UnavailableError(text)
