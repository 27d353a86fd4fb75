"""The program of a machine that joins a run: checks, the script, and each attempt again."""
