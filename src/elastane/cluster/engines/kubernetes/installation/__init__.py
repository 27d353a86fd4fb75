"""The objects of an installation in Kubernetes: as a list for `kubectl apply`, and as a chart for Helm."""
