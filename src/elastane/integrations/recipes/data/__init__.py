"""The data of recipes: files of samples, tokenizers, and the samples that a task trains on."""
