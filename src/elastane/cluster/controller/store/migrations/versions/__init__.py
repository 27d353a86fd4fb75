"""The migrations, one file each. A released migration never changes."""
