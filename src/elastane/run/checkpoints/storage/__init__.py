"""The storage of checkpoints: a local disk, or any file system of fsspec. It does not import torch."""
