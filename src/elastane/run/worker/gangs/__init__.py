"""A worker of several processes (a gang): one protocol, in process 0, and a part of the state in each."""
