"""The client of a controller, and the controller that was started on this machine."""
