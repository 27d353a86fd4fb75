"""Clients of live runs and of controllers."""
