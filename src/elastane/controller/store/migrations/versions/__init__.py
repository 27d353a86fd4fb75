"""One file a migration; never changed once released."""
