"""Storage of checkpoints: a local disk, or any file system of fsspec. Without torch."""
