"""A job inside the controller: pure decisions over frozen values."""
