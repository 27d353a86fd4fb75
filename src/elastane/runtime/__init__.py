"""Inside a worker: the only floor that imports torch."""

from elastane.api.extras import require

require("torch", "a training script needs torch")
