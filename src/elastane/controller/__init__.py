"""The controller of a cluster: its store, its access rules and its API. See docs/design/0007-controller.md."""
