"""The claim list of a run: numbered slots, each held for ever by the first record that was written to it.

Terms of coordinators and unplanned generations are claims in one list, so that two coordinators that cannot
reach each other cannot both go on. Steps and planned generations never touch it: while the list is away,
training continues. `elastane.run.machines.claims.claim_list.ClaimList` is the interface; a `Place` keeps the
contents.
"""
