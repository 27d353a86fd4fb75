"""Connections: listeners that survive strangers, and clients of a controller."""
