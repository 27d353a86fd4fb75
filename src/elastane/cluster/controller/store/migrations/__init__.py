"""The scripts of Alembic, shipped with the package."""
