"""Jobs on this machine: each a run directory and an agent in a session of its own."""
