"""A spot check that tokens of a file are tokens of the tokenizer."""

import numpy as np

from elastane.common.errors import BadInput
from elastane.integrations.datasets import TokenFile

LOOKS = 64


def check_token_range(windows: TokenFile, vocabulary: int) -> None:
    """Check windows that are spread evenly over a file of tokens; the model checks no token.

    Raises:
        BadInput: a token is outside the vocabulary.
    """
    for index in np.unique(np.linspace(0, len(windows) - 1, LOOKS).astype(np.int64)):
        inputs, targets, *_ = windows[int(index)]
        least, most = min(inputs.min(), targets[-1]), max(inputs.max(), targets[-1])
        if least < 0 or most >= vocabulary:
            raise BadInput(
                f"{windows.path} has the token {most if most >= vocabulary else least}",
                means=f"the tokenizer has the tokens 0 to {vocabulary - 1}, so another one made the file, "
                "or its data type is not data.dtype",
                do="name the tokenizer that made the file (data.tokenizer), or correct data.dtype",
            )
