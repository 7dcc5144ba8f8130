"""The server: what it offers, and whose sandbox a call is about."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolResult,
    Implementation,
    InitializeResult,
    ServerCapabilities,
    TextContent,
    Tool,
    ToolAnnotations,
    ToolsCapability,
)
from mcp.types.version import LATEST_HANDSHAKE_VERSION

from headstart.backends.contract import Capabilities, MountMode, Network, Processes
from headstart.errors import BackendError, SandboxUnknown
from headstart.ids import SessionId
from headstart.runtime.contract import Catalogue, JsonObject
from headstart.runtime.handshake import Lists, as_catalogue
from headstart.sandbox.hosted import OfSession, SandboxHost
from headstart.sandbox.options import HOST, SandboxOptions
from headstart.sandbox.tools import arguments, commands, files, transactions
from headstart.sandbox.tools.arguments import Arguments, CallRefused, checked, schema_of
from headstart.sandbox.tools.session import SANDBOX_SERVER, SessionSandbox
from headstart.version import VERSION

__all__ = ["SANDBOX_SERVER", "SandboxServer"]

_A = TypeVar("_A", bound=Arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reach:
    """What a sandbox reaches beyond itself.

    Attributes:
        files: What it writes may be the host's.
        network: What it runs may talk to others.
    """

    files: bool
    network: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _SandboxTool(Generic[_A]):
    """One tool.

    Attributes:
        act: Does it, and returns what the model is told.
        reads: It changes nothing.
        destroys: What was there before may be gone after it.
        repeats: Done once more, it changes nothing more.
        open_world: Tells whether it touches what is not the sandbox's own.
        layered: It needs a backend that keeps states.
    """

    name: str
    arguments: type[_A]
    act: Callable[[SessionSandbox, _A], Awaitable[str]]
    reads: bool = False
    destroys: bool = False
    repeats: bool = False
    open_world: Callable[[_Reach], bool] = lambda _: False
    layered: bool = False

    async def call(self, session: SessionSandbox, given: object) -> str:
        """Check the arguments and do it.

        Raises:
            HeadstartError: It cannot be done.
        """
        asked = checked(self.arguments, self.name, given)
        try:
            await session.sandbox()  # what was lost is told before anything else is done
            session.has_state |= not self.reads
            return await self.act(session, asked)
        except OSError as error:
            hint = "relative paths begin at the home; list_files shows what is there"
            raise CallRefused(f"{error.filename}: {error.strerror}", hint=hint) from error
        except SandboxUnknown:
            session.note_gone()
            raise
        except BackendError:
            await session.check_lost()
            raise

    def listed(self, reach: _Reach, *, keeps_kernels: bool) -> JsonObject:
        """Return how clients are told of it, where checkpoints can hold a Python kernel or not."""
        annotations = ToolAnnotations(read_only_hint=self.reads, open_world_hint=self.open_world(reach))
        if not self.reads:
            annotations.destructive_hint = self.destroys
            annotations.idempotent_hint = self.repeats
        told = (not keeps_kernels and self.arguments.without_kernels) or self.arguments.__doc__ or ""
        tool = Tool(
            name=self.name,
            description=" ".join(told.split()),
            input_schema=schema_of(self.arguments),
            annotations=annotations,
        )
        return tool.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _runs(reach: _Reach) -> bool:
    return reach.files or reach.network


def _writes(reach: _Reach) -> bool:
    return reach.files


_TOOLS: tuple[_SandboxTool[Any], ...] = (
    _SandboxTool(name="bash", arguments=arguments.Bash, act=commands.bash, destroys=True, open_world=_runs),
    _SandboxTool(name="python", arguments=arguments.Python, act=commands.python, destroys=True, open_world=_runs),
    _SandboxTool(name="read_file", arguments=arguments.ReadFile, act=files.read_file, reads=True),
    _SandboxTool(
        name="write_file",
        arguments=arguments.WriteFile,
        act=files.write_file,
        destroys=True,
        repeats=True,
        open_world=_writes,
    ),
    _SandboxTool(
        name="edit_file", arguments=arguments.EditFile, act=files.edit_file, destroys=True, open_world=_writes
    ),
    _SandboxTool(name="list_files", arguments=arguments.ListFiles, act=files.list_files, reads=True),
    _SandboxTool(name="checkpoint", arguments=arguments.Checkpoint, act=transactions.checkpoint, layered=True),
    _SandboxTool(
        name="rollback",
        arguments=arguments.Rollback,
        act=transactions.rollback,
        destroys=True,
        repeats=True,
        layered=True,
    ),
    _SandboxTool(
        name="drop", arguments=arguments.Drop, act=transactions.drop, destroys=True, repeats=True, layered=True
    ),
    _SandboxTool(name="fork", arguments=arguments.Fork, act=transactions.fork, layered=True),
    _SandboxTool(
        name="commit", arguments=arguments.Commit, act=transactions.commit, destroys=True, repeats=True, layered=True
    ),
    _SandboxTool(
        name="discard", arguments=arguments.Discard, act=transactions.discard, destroys=True, repeats=True, layered=True
    ),
)


class SandboxServer:
    """Implements `BuiltIn`.

    Args:
        host: Where sandboxes live.
        options: What they are made with.
        capabilities: What the backend that makes them can do.
        away_s: For how long a session may stay away after a restart of the service, until its sandbox ends.
    """

    def __init__(
        self, host: SandboxHost, options: SandboxOptions, capabilities: Capabilities, *, away_s: float
    ) -> None:
        self._host = host
        self._options = options
        self._away_s = away_s
        self._tools = {tool.name: tool for tool in _TOOLS if capabilities.layers or not tool.layered}
        self._sessions: dict[SessionId, SessionSandbox] = {}
        self._catalogue = self._made_catalogue(capabilities)

    def _made_catalogue(self, capabilities: Capabilities) -> Catalogue:
        reach = _reach_of(self._options, capabilities)
        keeps_kernels = capabilities.processes is not Processes.NONE
        initialize = InitializeResult(
            protocol_version=LATEST_HANDSHAKE_VERSION,
            capabilities=ServerCapabilities(tools=ToolsCapability()),
            server_info=Implementation(name="headstart-sandbox", version=VERSION),
            instructions=_instructions(self._options, can_fork="fork" in self._tools),
        )
        lists = Lists(
            initialize=initialize.model_dump(mode="json", by_alias=True, exclude_unset=True),
            tools=tuple(tool.listed(reach, keeps_kernels=keeps_kernels) for tool in self._tools.values()),
        )
        return as_catalogue(SANDBOX_SERVER, "built in", lists)

    @property
    def catalogue(self) -> Catalogue:
        """See `BuiltIn.catalogue`."""
        return self._catalogue

    async def request(self, session: SessionId, method: str, params: JsonObject | None) -> JsonObject:
        """See `BuiltIn.request`."""
        if method != "tools/call":
            raise MCPError(METHOD_NOT_FOUND, "Method not found", method)
        asked = params or {}
        tool = self._tools.get(str(asked.get("name")))
        if tool is None:
            known = ", ".join(self._tools)
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {asked.get('name')}. hint: there are {known}")
        held = self._sessions.get(session)
        if held is None:
            held = self._sessions[session] = self._sandbox_of(session)
        text = await tool.call(held, asked.get("arguments"))
        sayable = text.encode(errors="replace").decode()  # names of files may hold what is no character
        result = CallToolResult(content=[TextContent(type="text", text=sayable)])
        return result.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def take_up(self, session: SessionId) -> bool:
        """See `BuiltIn.take_up`."""
        held = self._sandbox_of(session)
        if not held.take_up():
            return False
        self._sessions[session] = held
        return True

    def _sandbox_of(self, session: SessionId) -> SessionSandbox:
        return SessionSandbox(self._host, self._options, OfSession(id=session, away_s=self._away_s))

    def close(self, session: SessionId) -> None:
        """See `BuiltIn.close`."""
        held = self._sessions.pop(session, None)
        if held is not None:
            held.end()


def _reach_of(options: SandboxOptions, capabilities: Capabilities) -> _Reach:
    isolated = Network.NONE in capabilities.network
    return _Reach(
        files=not isolated or MountMode.READ_WRITE.value in options.mounts.values(),
        network=not isolated or options.network != Network.NONE.value,
    )


def _instructions(options: SandboxOptions, *, can_fork: bool) -> str:
    shown = ", ".join(f"{path} ({mode})" for path, mode in options.mounts.items())
    parts = [
        "A Linux sandbox of this session's own, with a home in which relative paths begin.",
        "It sees the host's programs." if options.template == HOST else f"It is made from {options.template}.",
        "It has no network." if options.network == "none" else "It has the network of its host.",
        f"It sees these paths of the host: {shown}." if shown else "It sees none of the host's own files.",
        "It lives as long as the session does.",
    ]
    if can_fork:
        parts.append(
            "Before something that may go wrong, checkpoint, and rollback if it did; "
            "or fork, try it in the branch, and commit or discard that."
        )
    return " ".join(parts)
