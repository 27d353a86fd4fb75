"""Access rules: rights, rates, and which refusals are audited."""
