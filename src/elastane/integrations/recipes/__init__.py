"""Recipes: models of the hub, trained elastically without a line of code."""
