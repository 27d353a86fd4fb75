"""Alembic's scripts, shipped with the package."""
