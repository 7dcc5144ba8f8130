"""What a client sees of the servers: one server as it is, or all of them merged.

A view is made once from catalogues and never changes: its lists are bytes, so every
client that looks at the same catalogues gets the same bytes, and a thousand sessions
share one copy. When a server's lists change, clients that can be told get another view.

In the merged view a tool or prompt is called `server__name` (`core.names`). A resource
keeps its URI while that is unique among all servers; a URI that an earlier server has
already taken becomes `headstart://<server>/<original URI>`, a form that is also
understood for any other resource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import quote, unquote

from mcp.shared.uri_template import InvalidUriTemplate, UriTemplate

from headstart.core.names import distinct_merged_name, merged_name
from headstart.gateway.wire import encode, json_object
from headstart.ids import ResourceId
from headstart.runtime.contract import Catalogue, JsonObject

__all__ = ["LIST_CHANGED", "LIST_KEYS", "Missing", "Target", "View", "merge", "qualified_uri", "single"]

LIST_KEYS: Final[Mapping[str, str]] = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""Which member of its result a list method fills."""

LIST_CHANGED: Final[Mapping[str, tuple[str, ...]]] = {
    "notifications/tools/list_changed": ("tools/list",),
    "notifications/resources/list_changed": ("resources/list", "resources/templates/list"),
    "notifications/prompts/list_changed": ("prompts/list",),
}
"""Which lists each notification is about."""

_CAPABILITY_OF: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resources",
    "prompts/list": "prompts",
}
_SCHEME: Final = "headstart://"
_MODERN_ENVELOPE: Final = b'{"resultType":"complete","ttlMs":0,"cacheScope":"private",'


@dataclass(frozen=True, slots=True)
class Target:
    """Where a name or URI of the view leads."""

    server: ResourceId
    name: str
    """The server's own name or URI for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """A server that is not in the view, and why."""

    server: ResourceId
    reason: str


class View:
    """The lists of one or all servers, and the way back from what they show.

    Attributes:
        server: The one server, or None for the merged view.
        key: Names the content: equal keys, equal bytes.
        missing: Servers left out.
    """

    def __init__(
        self,
        *,
        server: ResourceId | None,
        key: str,
        catalogues: Sequence[Catalogue],
        shown: Mapping[str, Sequence[JsonObject]],
        routes: _Routes,
        missing: Sequence[Missing] = (),
    ) -> None:
        self.server = server
        self.key = key
        self.missing = tuple(missing)
        self._catalogues = {catalogue.server: catalogue for catalogue in catalogues}
        self._lists = {method: encode({LIST_KEYS[method]: items}) for method, items in shown.items()}
        self._routes = routes
        self._header_schemas = {
            tool["name"]: tool.get("inputSchema")
            for tool in shown.get("tools/list", ())
            if b'"x-mcp-header"' in encode(tool.get("inputSchema"))
        }

    @property
    def servers(self) -> tuple[ResourceId, ...]:
        return tuple(self._catalogues)

    def list_bytes(self, method: str, *, modern: bool) -> bytes | None:
        """Return a list's encoded result, or None if the server has no such list."""
        body = self._lists.get(method)
        if body is None or not modern:
            return body
        return _MODERN_ENVELOPE + body[1:]

    def initialize(self) -> JsonObject:
        """Return the one server's own `initialize` result; the merged view makes its own.

        Raises:
            KeyError: This is a merged view.
        """
        return self._catalogues[cast("ResourceId", self.server)].initialize

    def instructions(self) -> list[tuple[ResourceId, str]]:
        """Return what each server tells models about itself, where it does."""
        texts = [(name, catalogue.initialize.get("instructions")) for name, catalogue in self._catalogues.items()]
        return [(name, text) for name, text in texts if isinstance(text, str) and text]

    def capability(self, server: ResourceId, name: str) -> object | None:
        """Return what `server` declared for one capability, or None."""
        catalogue = self._catalogues.get(server)
        return None if catalogue is None else _capabilities(catalogue).get(name)

    def with_capability(self, name: str) -> list[ResourceId]:
        return [server for server in self._catalogues if self.capability(server, name) is not None]

    def header_schema(self, tool: str) -> object | None:
        """Return the input schema of a tool that mirrors arguments in HTTP headers."""
        return self._header_schemas.get(tool)

    def tool(self, name: str) -> Target | None:
        """Find a tool; one that is not listed is still found by its server's prefix, also of a missing server."""
        return self._named(self._routes.tools, name)

    def prompt(self, name: str) -> Target | None:
        return self._named(self._routes.prompts, name)

    def resource(self, uri: str) -> Target | None:
        """Find the server of a resource: listed, qualified, by template, or the only one that has any."""
        if self.server is not None:
            return Target(self.server, uri)
        if (target := self._routes.resources.get(uri) or _unqualified(uri, self._catalogues)) is not None:
            return target
        for template, server in self._routes.templates:
            if template.match(uri) is not None:
                return Target(server, uri)
        having = self.with_capability("resources")
        return Target(having[0], uri) if len(having) == 1 else None

    def template(self, uri_template: str) -> Target | None:
        """Find the server of a resource template by its text (completion refers to it so)."""
        if self.server is not None:
            return Target(self.server, uri_template)
        return self._routes.template_texts.get(uri_template) or self.resource(uri_template)

    def shown_uri(self, server: ResourceId, uri: str) -> str:
        """Return what this view calls a server's resource."""
        if self.server is not None:
            return uri
        owner = self._routes.resources.get(uri)
        return uri if owner is None or owner.server == server else qualified_uri(server, uri)

    def changed_lists(self, other: View) -> set[str]:
        """Return the methods whose lists differ between two views."""
        return {
            method
            for method in LIST_KEYS
            if self.list_bytes(method, modern=False) != other.list_bytes(method, modern=False)
        }

    def _named(self, routes: Mapping[str, Target], name: str) -> Target | None:
        if self.server is not None:
            return Target(self.server, name)
        if (target := routes.get(name)) is not None:
            return target
        for server in (*self._catalogues, *(missing.server for missing in self.missing)):
            if name.startswith(f"{server}__"):
                return Target(server, name[len(server) + 2 :])
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Routes:
    tools: Mapping[str, Target]
    prompts: Mapping[str, Target]
    resources: Mapping[str, Target]
    templates: Sequence[tuple[UriTemplate, ResourceId]]
    template_texts: Mapping[str, Target]


_NO_ROUTES = _Routes(tools={}, prompts={}, resources={}, templates=(), template_texts={})


def single(catalogue: Catalogue) -> View:
    """Show one server as it is: only the lists that it has."""
    items = _items(catalogue)
    capabilities = _capabilities(catalogue)
    shown = {method: items[method] for method in LIST_KEYS if _CAPABILITY_OF[method] in capabilities or items[method]}
    return View(
        server=catalogue.server,
        key=f"{catalogue.server}\x1f{catalogue.digest}",
        catalogues=[catalogue],
        shown=shown,
        routes=_NO_ROUTES,
    )


def merged_key(catalogues: Iterable[Catalogue], missing: Iterable[Missing]) -> str:
    """Name a merged view's content without making it."""
    parts = [f"{c.server}\x1f{c.digest}" for c in catalogues] + [f"-{m.server}\x1f{m.reason}" for m in missing]
    return "\x1e".join(("*", *parts))


def merge(catalogues: Sequence[Catalogue], missing: Sequence[Missing] = ()) -> View:
    """Show all servers as one, in the order given."""
    tools: dict[str, Target] = {}
    prompts: dict[str, Target] = {}
    resources: dict[str, Target] = {}
    templates: dict[str, Target] = {}
    shown: dict[str, list[JsonObject]] = {method: [] for method in LIST_KEYS}
    for catalogue in catalogues:
        items = _items(catalogue)
        shown["tools/list"] += _renamed(catalogue.server, items["tools/list"], tools)
        shown["prompts/list"] += _renamed(catalogue.server, items["prompts/list"], prompts)
        shown["resources/list"] += _readdressed(catalogue.server, items["resources/list"], "uri", resources)
        shown["resources/templates/list"] += _readdressed(
            catalogue.server, items["resources/templates/list"], "uriTemplate", templates
        )
    routes = _Routes(
        tools=tools,
        prompts=prompts,
        resources=resources,
        templates=_parsed(templates.values()),
        template_texts=templates,
    )
    return View(
        server=None,
        key=merged_key(catalogues, missing),
        catalogues=catalogues,
        shown=shown,
        routes=routes,
        missing=missing,
    )


def qualified_uri(server: ResourceId, uri: str) -> str:
    """Return the URI of a server's resource that no other server's can equal.

    >>> qualified_uri(ResourceId("git"), "file:///readme")
    'headstart://git/file:///readme'
    """
    return f"{_SCHEME}{quote(server, safe='')}/{uri}"


def _unqualified(uri: str, known: Mapping[ResourceId, Any]) -> Target | None:
    if not uri.startswith(_SCHEME):
        return None
    name, slash, original = uri[len(_SCHEME) :].partition("/")
    server = ResourceId(unquote(name))
    return Target(server, original) if slash and server in known else None


def _items(catalogue: Catalogue) -> dict[str, Sequence[JsonObject]]:
    return {
        "tools/list": catalogue.tools,
        "resources/list": catalogue.resources,
        "resources/templates/list": catalogue.resource_templates,
        "prompts/list": catalogue.prompts,
    }


def _capabilities(catalogue: Catalogue) -> JsonObject:
    return json_object(catalogue.initialize.get("capabilities")) or {}


def _renamed(server: ResourceId, items: Sequence[JsonObject], taken: dict[str, Target]) -> list[JsonObject]:
    def free(original: str) -> str:
        name = merged_name(server, original)
        return name if name not in taken else distinct_merged_name(server, original)

    return _moved(server, items, "name", free, taken)


def _readdressed(
    server: ResourceId, items: Sequence[JsonObject], member: str, taken: dict[str, Target]
) -> list[JsonObject]:
    def free(original: str) -> str:
        return original if original not in taken else qualified_uri(server, original)

    return _moved(server, items, member, free, taken)


def _moved(
    server: ResourceId,
    items: Sequence[JsonObject],
    member: str,
    free: Callable[[str], str],
    taken: dict[str, Target],
) -> list[JsonObject]:
    """Copy items with `member` replaced by a free name, noting where each leads."""
    moved: list[JsonObject] = []
    for item in items:
        original = item.get(member)
        if not isinstance(original, str):
            continue  # a list entry without its name cannot be asked for
        name = free(original)
        taken[name] = Target(server, original)
        moved.append(item if name == original else {**item, member: name})
    return moved


def _parsed(targets: Iterable[Target]) -> list[tuple[UriTemplate, ResourceId]]:
    parsed: list[tuple[UriTemplate, ResourceId]] = []
    for target in targets:
        try:
            parsed.append((UriTemplate.parse(target.name), target.server))
        except InvalidUriTemplate:
            continue  # it stays listed; only routing by it is impossible
    return parsed
