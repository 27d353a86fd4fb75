"""The metrics of a cluster, as Prometheus scrapes them from the controller."""
