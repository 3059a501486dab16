"""ConfigUpdates: run-time changes of settings on a replicated node.

Shared settings are part of the state. A command in the log changes them. Other settings belong to this node. They are written to
its file, and then put in force:

    settings in the request  steps
    only shared ones         command
    only this node's         write the file, put in force
    both kinds               check that a majority answers, write the file, put in force, command

In the last row the file is written first: if the disk refuses it, nothing changes. After the file is written, the outcome of the
command determines whether the request is done or partly done.
"""

from collections.abc import Awaitable, Callable, Mapping

from replicated_namesrv.config_writer import SHARED_ROWS, ConfigWriter, describe_written
from replicated_namesrv.errors import NamesrvError, PartlyDoneError
from replicated_namesrv.model import ChangeOrigin
from replicated_namesrv.routes.commands import Command, UpdateSettings
from replicated_namesrv.routes.results import Result
from replicated_namesrv.routes.state import RouteSettings
from replicated_namesrv.settings import ROWS, Settings


class ConfigUpdates:
    """Applies changes of settings on one node, on its event loop."""

    def __init__(
        self,
        settings: Settings,
        propose: Callable[[Command, ChangeOrigin | None], Awaitable[Result]],
        confirm_majority: Callable[[], Awaitable[None]],
    ) -> None:
        """``confirm_majority`` raises UnavailableError if no majority answers, so that a proposal would fail."""
        self._settings, self._propose, self._confirm_majority = settings, propose, confirm_majority
        self._writer = ConfigWriter(settings, lambda values: Result(changed=bool(settings.change(values))))

    async def update(self, values: dict[str, str], origin: ChangeOrigin | None = None) -> Result:
        """Change the settings in ``values``, keyed by their names in the properties file. Raises PartlyDoneError if one part was
        changed and it is certain or possible that the other was not."""
        shared = {key: text for key, text in values.items() if (row := ROWS.get(key)) is not None and row.replicated}
        local = {key: text for key, text in values.items() if key not in shared}
        if not values:
            return Result()
        command = UpdateSettings({ROWS[key].attribute: bool(ROWS[key].parse(text)) for key, text in shared.items()})
        if not local:
            return await self._propose(command, origin)
        if not shared:
            return await self._writer.submit(local)
        await self._confirm_majority()
        if origin is not None:
            origin.check()
        changed = (await self._writer.submit(local)).changed
        try:
            return Result(changed=(await self._propose(command, origin)).changed or changed)
        except NamesrvError as error:
            written = describe_written(self._settings, local)
            if not written:
                raise
            shared_now = "not changed" if error.definite else "may or may not have changed"
            raise PartlyDoneError(f"{written}; {', '.join(shared)} {shared_now}: {error}; repeat the request") from error

    def show(self, flags: RouteSettings) -> None:
        """The shared settings have changed to ``flags``: show the new values in answers to ``GET_NAMESRV_CONFIG`` (319)."""
        texts: Mapping[str, str] = {row.name: row.show(getattr(flags, attribute)) for attribute, row in SHARED_ROWS.items()}
        self._settings.update(texts)

    async def drain(self) -> None:
        """Wait for pending writes."""
        await self._writer.drain()
