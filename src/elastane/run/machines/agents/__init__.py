"""The agents of machines that have joined a run, and of the machine that began it."""
