"""Trains a small BERT classifier on random tokens with the Trainer of transformers.

torchrun --standalone --nproc-per-node=gpu train_hf_trainer.py --batch-size 32
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EvalPrediction,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)


class RandomTexts(Dataset):
    """Sequences of tokens with a label, the same for the same index."""

    def __init__(self, samples: int, length: int, vocabulary: int) -> None:
        self.samples, self.length, self.vocabulary = samples, length, vocabulary

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocabulary, (self.length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens[0] % 2}


class Throughput(TrainerCallback):
    """Prints the samples that all ranks train on in a second, without an epoch's first steps."""

    def __init__(self, skip_steps: int) -> None:
        self.skip_steps = skip_steps

    def restart(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.steps, self.began = 0, time.perf_counter()

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.epoch, self.skipped = round(state.epoch or 0), False
        self.restart()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.steps += 1
        if self.steps == self.skip_steps and not self.skipped:
            self.skipped = True
            self.restart()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        steps, began = self.steps, self.began
        self.restart()
        if state.is_world_process_zero and steps:
            batch = args.per_device_train_batch_size * args.gradient_accumulation_steps
            rate = steps * batch * args.world_size / (self.began - began)
            print(f"epoch {self.epoch}: {rate:.1f} samples/s", flush=True)


def accuracy(prediction: EvalPrediction) -> dict[str, float]:
    chosen = np.argmax(prediction.predictions, axis=-1)
    return {"accuracy": float((chosen == prediction.label_ids).mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description="Text classification with transformers")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--samples", type=int, default=50_000, help="texts to train on")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank (%(default)s)")
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="per rank (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-steps", type=int, default=-1, help="stop after so many steps")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--skip-steps", type=int, default=10, help="of an epoch, not timed")
    parser.add_argument("--output-dir", default="checkpoints")
    args = parser.parse_args()

    set_seed(0)
    config = BertConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden_size,
        intermediate_size=4 * args.hidden_size,
        num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.hidden_size // 64),
        max_position_embeddings=args.sequence_length,
    )
    training = TrainingArguments(
        output_dir=args.output_dir,
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=args.batch_size,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        dataloader_num_workers=args.workers,
        dataloader_drop_last=True,
        num_train_epochs=args.epochs,
        max_steps=args.max_steps,
        learning_rate=args.lr,
        bf16=args.bf16,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        logging_steps=100,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    shape = (args.sequence_length, args.vocabulary)
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training,
        train_dataset=RandomTexts(args.samples, *shape),
        eval_dataset=RandomTexts(args.samples // 20, *shape),
        compute_metrics=accuracy,
        callbacks=[Throughput(args.skip_steps)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
