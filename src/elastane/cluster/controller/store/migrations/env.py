"""The entry point of Alembic. Migrations run on the connection that `controller.store.database` passes."""

from alembic import context

from elastane.cluster.controller.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
