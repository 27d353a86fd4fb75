"""One elastic run: workers that train the same bytes while they join, leave and die.

Its nouns are in `nouns`, its decisions in `protocol` and `coordinator`, and its processes in `agent`,
`coordinator` and `worker`. `attempts` begins and ends it. `machines` has what only a run on several machines
needs, `scripts` what only an unmodified script needs.
"""
