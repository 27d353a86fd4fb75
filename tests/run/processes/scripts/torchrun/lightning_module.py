"""A module of Lightning that continues from its last checkpoint, as the documentation describes it."""

import os
import sys
from pathlib import Path

import lightning as L  # noqa: N812 - as people have it
import torch
from journal import Journal
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

folder = Path(sys.argv[1])
journal = Journal(folder)


class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        source, target = batch
        return torch.nn.functional.mse_loss(self.layer(source), target)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Record(Callback):
    """Writes each epoch into the journal; an epoch can be held before its checkpoint."""

    def on_train_start(self, trainer, module):
        place = f"{trainer.global_rank}/{trainer.world_size}"
        journal.note(f"start {place} from {trainer.current_epoch}")

    def on_train_epoch_end(self, trainer, module):
        journal.wait_at(trainer.current_epoch, until=lambda: trainer.received_sigterm)
        if trainer.is_global_zero:
            journal.note(f"epoch {trainer.current_epoch} of {trainer.world_size}")


L.seed_everything(1)
source = torch.randn(64, 4)
loader = DataLoader(TensorDataset(source, source.sum(1, keepdim=True)), batch_size=8, shuffle=True)
trainer = L.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    strategy="ddp",
    max_epochs=8,
    callbacks=[Record(), ModelCheckpoint(folder, save_last=True)],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = folder / "last.ckpt"
trainer.fit(Regression(), loader, ckpt_path=last if last.exists() else None)
