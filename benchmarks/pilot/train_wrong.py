"""Fail at the first microbatch: a job with a mistake."""

import elastane
import torch
from digits.data import digits  # type: ignore[import-not-found]
from digits.model import convolutional  # type: ignore[import-not-found]


def main() -> None:
    run = elastane.join()
    model = convolutional()
    model, _ = run.prepare(model, torch.optim.AdamW(model.parameters()))
    for step in run.steps(digits().train, global_batch=48, microbatch=4, until="10 steps"):
        for images, labels in step:
            step.backward(model(images) @ labels)


if __name__ == "__main__":
    main()
