"""The dashboard: pages about a cluster, or about one run, for a browser. An ordinary client of the API."""
