"""The program ``ray``, bound to loopback: on a machine with a network it would listen there.

Ray replaces 127.0.0.1 by the address of the machine. It runs in the Python of Ray.
"""

from ray._private import services

services.get_node_ip_address = lambda address=None: "127.0.0.1"

from ray.scripts.scripts import main  # noqa: E402 - it may copy the function

main()
