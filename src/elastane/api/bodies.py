"""The bases of the bodies that the REST API takes and serves."""

import msgspec


class AnswerBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of answers: clients ignore fields that they do not know."""


class RequestBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Base of requests: a field that is not known is an error, because it was meant to do something."""
