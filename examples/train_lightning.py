"""Trains a torchvision model on random images with Lightning.

torchrun --standalone --nproc-per-node=gpu train_lightning.py --arch resnet18 --batch-size 64
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


class Classifier(L.LightningModule):
    def __init__(self, arch: str, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = models.get_model(arch, weights=None)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
        images, labels = batch
        loss = cross_entropy(self.model(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> None:
        images, labels = batch
        self.log("val_loss", cross_entropy(self.model(images), labels), sync_dist=True)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, step_size=30),
        }


class RandomImages(L.LightningDataModule):
    def __init__(self, samples: int, image_size: int, batch_size: int, workers: int) -> None:
        super().__init__()
        self.save_hyperparameters()

    def loader(self, samples: int, train: bool) -> DataLoader[Any]:
        size = self.hparams.image_size
        return DataLoader(
            datasets.FakeData(samples, (3, size, size), 1000, transforms.ToTensor()),
            batch_size=self.hparams.batch_size,
            num_workers=self.hparams.workers,
            pin_memory=torch.cuda.is_available(),
            shuffle=train,
            drop_last=train,
        )

    def train_dataloader(self) -> DataLoader[Any]:
        return self.loader(self.hparams.samples, train=True)

    def val_dataloader(self) -> DataLoader[Any]:
        return self.loader(self.hparams.samples // 20, train=False)


class Throughput(L.Callback):
    """Prints the samples that all ranks train on in a second, without an epoch's first steps."""

    def __init__(self, skip_steps: int) -> None:
        self.skip_steps = skip_steps
        self.restart()

    def restart(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.samples, self.began = 0, time.perf_counter()

    def report(self, trainer: L.Trainer) -> None:
        samples, began = self.samples, self.began
        self.restart()
        if samples and trainer.is_global_zero:
            rate = samples * trainer.world_size / (self.began - began)
            print(f"epoch {trainer.current_epoch}: {rate:.1f} samples/s", flush=True)

    def on_train_epoch_start(self, *_: Any) -> None:
        self.restart()

    def on_train_batch_end(self, _trainer, _module, _outputs, batch, batch_idx: int) -> None:
        self.samples += len(batch[0])
        if batch_idx + 1 == self.skip_steps:
            self.restart()

    def on_validation_start(self, trainer: L.Trainer, *_: Any) -> None:
        self.report(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self.report(trainer)  # where --max-steps ended the epoch before its validation


def main() -> None:
    parser = argparse.ArgumentParser(description="Image classification with Lightning")
    parser.add_argument("--arch", default="resnet18", help="a torchvision model (%(default)s)")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--samples", type=int, default=50_000, help="images to train on")
    parser.add_argument("--batch-size", type=int, default=64, help="per rank (%(default)s)")
    parser.add_argument("--workers", type=int, default=4, help="per rank (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-steps", type=int, default=-1, help="stop after so many steps")
    parser.add_argument("--precision", default="32-true", help="of the Trainer (%(default)s)")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--skip-steps", type=int, default=10, help="of an epoch, not timed")
    parser.add_argument("--output-dir", default="checkpoints")
    args = parser.parse_args()

    L.seed_everything(0, workers=True)
    ranks, here = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    trainer = L.Trainer(
        strategy="ddp",
        devices=here,
        num_nodes=ranks // here,
        precision=args.precision,
        max_epochs=args.epochs,
        max_steps=args.max_steps,
        callbacks=[Throughput(args.skip_steps), ModelCheckpoint(monitor="val_loss")],
        default_root_dir=args.output_dir,
        enable_progress_bar=False,
    )
    data = RandomImages(args.samples, args.image_size, args.batch_size, args.workers)
    trainer.fit(Classifier(args.arch, args.lr), data)


if __name__ == "__main__":
    main()
