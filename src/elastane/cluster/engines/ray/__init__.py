"""The engine for clusters of Ray. Each agent is the child of a detached actor that has its id as name.

The state is Ray's. `driver` is a process of its own in the Python of the Ray cluster: it does what `engine`
asks over pipes, and decides nothing. The meaning of its answers is decided in `sightings`, and the actor that
it makes in `actor_order`.
"""
