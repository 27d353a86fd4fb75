"""The base classes of the bodies of REST requests and answers."""

import msgspec


class AnswerBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of answers: clients ignore fields that they do not know."""


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of requests: an unknown field is an error, because the client meant it to have an effect."""
