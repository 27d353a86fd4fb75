"""Files that the commands keep in the home."""

import os

from elastane.common.connections.controller_context import Context, save_context


def test_a_new_home_is_private_and_an_existing_one_keeps_its_permissions(home):
    umask = os.umask(0o022)
    try:
        save_context(Context(url="http://127.0.0.1:1", token=""))
        assert home.stat().st_mode & 0o777 == 0o700
        home.chmod(0o750)
        save_context(Context(url="http://127.0.0.1:2", token=""))
        assert home.stat().st_mode & 0o777 == 0o750
    finally:
        os.umask(umask)
