"""Trainers that people already use, made elastic: one module for each library."""
