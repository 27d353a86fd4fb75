"""The agents of jobs: which ones to start and to end, what to tell them, and what they say of their jobs."""
