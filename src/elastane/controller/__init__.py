"""The controller of a cluster; see docs/design/0007-controller.md."""
