"""A worker of several processes (a gang): one protocol in its process 0, and a part of the state in each process."""
