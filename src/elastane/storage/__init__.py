"""Checkpoints where they lie: files on a local disk or any file system fsspec knows. Without torch."""
