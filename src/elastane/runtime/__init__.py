"""The worker of a run: the only package that imports torch."""

from elastane.api.extras import require

require("torch", "a training script needs torch")
