"""A run on several machines: tickets, agents, claims, and the succession of coordinators."""
