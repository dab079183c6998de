"""Trains a small Llama on random tokens with Accelerate.

torchrun --standalone --nproc-per-node=gpu train_accelerate.py --batch-size 16
accelerate launch train_accelerate.py --batch-size 16
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup


class RandomTokens(Dataset):
    """Sequences of tokens, the same for the same index."""

    def __init__(self, samples: int, length: int, vocabulary: int) -> None:
        self.samples, self.length, self.vocabulary = samples, length, vocabulary

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocabulary, (self.length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Causal language modelling with Accelerate")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--hidden-size", type=int, default=512)
    parser.add_argument("--sequence-length", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--samples", type=int, default=50_000, help="sequences to train on")
    parser.add_argument("--batch-size", type=int, default=16, help="per rank (%(default)s)")
    parser.add_argument("--gradient-accumulation-steps", type=int, default=1)
    parser.add_argument("--mixed-precision", choices=["no", "bf16", "fp16"], default="no")
    parser.add_argument("--workers", type=int, default=2, help="per rank (%(default)s)")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-steps", type=int, help="stop after so many batches of a rank")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--skip-steps", type=int, default=10, help="of an epoch, not timed")
    parser.add_argument("--output-dir", type=Path, default=Path("checkpoints"))
    return parser.parse_args()


def now() -> float:
    """The time when all that was asked of the device is done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    args = parse_arguments()
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision=args.mixed_precision,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
    )
    set_seed(0)

    shape = (args.sequence_length, args.vocabulary)
    train_set, val_set = (
        RandomTokens(args.samples, *shape),
        RandomTokens(args.samples // 20, *shape),
    )
    loading = {"batch_size": args.batch_size, "num_workers": args.workers}
    train_loader = DataLoader(train_set, shuffle=True, drop_last=True, **loading)
    val_loader = DataLoader(val_set, **loading)
    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden_size,
        intermediate_size=4 * args.hidden_size,
        num_hidden_layers=args.layers,
        num_attention_heads=max(1, args.hidden_size // 64),
        max_position_embeddings=args.sequence_length,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 100, args.epochs * len(train_loader))
    model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, val_loader, scheduler
    )

    steps = 0
    for epoch in range(args.epochs):
        model.train()
        samples, began = 0, now()
        for step, batch in enumerate(train_loader, 1):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            steps += 1
            samples += len(batch["input_ids"]) * accelerator.num_processes
            if step == args.skip_steps:
                samples, began = 0, now()
            if steps == args.max_steps:
                break
        if samples:
            accelerator.print(f"epoch {epoch}: {samples / (now() - began):.1f} samples/s")

        model.eval()
        losses = []
        with torch.no_grad():
            for batch in val_loader:
                losses.append(accelerator.gather_for_metrics(model(**batch).loss))
        mean = torch.stack([loss.mean() for loss in losses]).mean()
        accelerator.print(f"epoch {epoch}: validation loss {mean:.4f}")
        accelerator.save_state(str(args.output_dir / f"epoch_{epoch}"))
        if steps == args.max_steps:
            break
    accelerator.end_training()


if __name__ == "__main__":
    main()
