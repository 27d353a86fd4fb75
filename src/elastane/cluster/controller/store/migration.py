"""The migration of a database to the newest schema, at every start of the controller."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

from elastane.cluster.controller.store.failures import StoreOfOtherVersion

SCRIPTS = Path(__file__).with_name("migrations")


def migrate(engine: Engine) -> None:
    """Run all missing migrations, in one transaction.

    Raises:
        StoreOfOtherVersion: a version with another schema of Elastane has written the database.
    """
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    with engine.connect() as plain:
        connection = plain.execution_options(elastane_writes=True)
        with connection.begin():
            at = MigrationContext.configure(connection).get_current_revision()
            known = {script.revision for script in scripts.walk_revisions()}
            if at is not None and at not in known:
                raise StoreOfOtherVersion(
                    f"the store is at schema {at}, which this version of Elastane does not know",
                    means="a newer version has written it, or a build from before 0.1.0; "
                    "this one would damage it",
                    do="start that version, or use another store",
                )
            if at != scripts.get_current_head():
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
