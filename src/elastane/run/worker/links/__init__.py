"""Connections of a worker to its peers and to the coordinator."""
