"""The REST API: requests in, transactions on the store, answers out. The decisions are made elsewhere.

Any function here may raise a `Refusal`, `NotAllowed` or `BadField`; ``problems`` answers with it.
"""
