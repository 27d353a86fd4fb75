"""The commands of recipes."""
