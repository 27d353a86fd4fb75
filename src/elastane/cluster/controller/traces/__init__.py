"""Traces of what happens to jobs, for OpenTelemetry."""
