"""The finished model: what a run leaves behind, in formats that others read."""
