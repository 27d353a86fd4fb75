"""Samples of virtual ranks: dealt by position or from streams, loaded ahead."""
