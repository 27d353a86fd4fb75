"""The ways in which workers keep state and exchange it: whole or sharded, over shared memory or TCP.

Two opposite ways meet each half of the code; `make test-long` adds the other two combinations.
"""

import pytest

OPPOSITE_WAYS = [
    pytest.param({"copies": None, "transport": "shared"}, id="whole-shared"),
    pytest.param({"copies": 2, "transport": "tcp"}, id="sharded-tcp"),
]
EVERY_WAY = [
    *OPPOSITE_WAYS,
    pytest.param({"copies": None, "transport": "tcp"}, id="whole-tcp", marks=pytest.mark.long),
    pytest.param({"copies": 2, "transport": "shared"}, id="sharded-shared", marks=pytest.mark.long),
]
