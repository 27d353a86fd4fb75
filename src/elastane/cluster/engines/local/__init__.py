"""The engine for jobs on this machine. Each job is a run directory and an agent process.

An agent is started in one of two ways, both by `engine.LocalEngine`: as the engine's own user
(`preflight`, then `agent_process.start_agent`), or as the system user of the job's team (`user_isolation`,
which runs `user_launcher` as that user).
"""
