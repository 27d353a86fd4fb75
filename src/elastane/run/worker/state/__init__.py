"""The state of a training: its layout, its memory, the optimizers and everything that must survive."""
