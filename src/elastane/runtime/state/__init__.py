"""What is trained: its layout, its memory, the optimizers on it, and everything that must survive."""
