"""The worker of a run: the only package that imports torch."""

from elastane.common.extras import require

require("torch", "a training script needs torch")
