"""The training scripts of recipes: plain scripts over the public API, which users can eject and change."""
