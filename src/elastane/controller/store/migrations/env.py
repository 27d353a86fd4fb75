"""Alembic's way in: migrations run on the connection that `controller.store.migrating` hands over."""

from alembic import context

from elastane.controller.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
