"""The engine for clusters that Slurm schedules. Each agent is a batch job on one machine.

The state is Slurm's: a job is found again by its name, which has the id of its agent. `engine.SlurmEngine`
runs the programs of Slurm. The meaning of their output is decided in `job_queue`, `machines` and
`programs`, and the job that is submitted in `submission`.
"""
