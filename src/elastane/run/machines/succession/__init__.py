"""Which machine takes charge of a run when its coordinator is silent. Pure."""
