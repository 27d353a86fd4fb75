"""The agent of an unmodified script: it starts the processes of each world, as decisions say."""
