"""The controller of a cluster: its store, who may do what, the API; see docs/design/0007-controller.md."""
