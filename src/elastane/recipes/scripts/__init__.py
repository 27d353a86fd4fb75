"""The training scripts of recipes: plain scripts over the public API, which `elastane recipe eject` copies."""
