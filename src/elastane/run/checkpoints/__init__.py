"""Pure decisions about checkpoints: rectangles of tensors, completeness of manifests, retention."""
