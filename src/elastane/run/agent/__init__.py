"""The agent: starts and watches the processes of a run, and decides nothing about the training."""
