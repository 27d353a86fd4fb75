"""The controller of a cluster: its store, access rules and API. See docs/design/0007-controller.md."""
