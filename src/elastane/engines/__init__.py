"""Where workers come from. An engine starts, stops and observes the agents of jobs; it decides nothing."""
