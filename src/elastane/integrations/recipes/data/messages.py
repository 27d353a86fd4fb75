"""The messages of a conversation and its tools, as a row of the data has them."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from elastane.common.safe_text import escape_line
from elastane.common.untrusted_data import Decoder, Malformed

ASSISTANT = "assistant"
ROLES = ("system", "developer", "user", ASSISTANT, "tool", "function", "environment", "ipython")
"""The roles of published chat templates. A template that names another role allows it."""
TOOLS = Decoder[list[dict[str, Any]]](list[dict[str, Any]])


class BadSample(ValueError):
    """A row is not a sample of its task; the message gives the reason."""


def check_messages(messages: object, field: str) -> list[dict[str, Any]]:
    """Return the messages of a conversation; each has text, or calls of tools."""
    if not isinstance(messages, list) or not messages:
        raise BadSample(f"{field!r} is not a list of messages")
    for number, message in enumerate(messages, start=1):
        where = f"message {number} of {field!r}"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise BadSample(f"{where} has no text under 'role' and 'content'")
        content = message.get("content")
        if isinstance(content, list):
            raise BadSample(f"{where} has a list of parts as its content; a recipe trains on text only")
        if not isinstance(content, str) and not (content is None and has_calls(message)):
            raise BadSample(f"{where} has no text under 'role' and 'content'")
    return [dict(message, content=message.get("content") or "") for message in messages]


def check_roles(messages: Sequence[Mapping[str, Any]], template: str) -> None:
    """Check that a chat template knows the roles of all messages: a misspelt role would not be learned.

    It knows those that its Jinja source names in quotes, too.
    """
    for number, message in enumerate(messages, start=1):
        role = message["role"]
        if role not in ROLES and f"'{role}'" not in template and f'"{role}"' not in template:
            near = get_close_matches(role, ROLES, n=1)
            hint = f"; it may be {near[0]!r}" if near else f"; the roles are {', '.join(ROLES[:5])}"
            raise BadSample(f"message {number} has the unknown role {escape_line(role, 40)!r}{hint}")


def check_tool_support(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, template: str
) -> None:
    """Check that a chat template writes the tools and the calls of a conversation."""
    found = {"tools": bool(tools), "tool_calls": any(map(has_calls, messages))}
    for name, is_present in found.items():
        if is_present and name not in template:
            raise BadSample(f"it has {name}, which the chat template ignores; write data.chat_template")


def has_calls(message: Mapping[str, Any]) -> bool:
    return bool(message.get("tool_calls"))


def read_tools(tools: object, field: str) -> list[Any] | None:
    """Return the tools of a conversation, perhaps a list in JSON as in tables; None: the row has none."""
    if tools is None or tools in ("", []):
        return None
    if isinstance(tools, str):
        try:
            return TOOLS(tools.encode(errors="replace")) or None
        except Malformed as error:
            raise BadSample(f"{field!r} is not a list of tools: {error}") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadSample(f"{field!r} is not a list of tools")
    return tools
