"""The dashboard: pages about a cluster, or about one run, for a browser. An ordinary client of the API.

Any function here may raise an `ElastaneError`, for example if no controller answers; ``app`` shows it.
"""
