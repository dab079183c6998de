"""A small GPT and random tokens for it, as a model and a data set of your own for a search.

PYTHONPATH=examples nccltune search --model gpt:model --data gpt:tokens --batch-size 8
PYTHONPATH=examples nccltune search --model gpt:model --data synthetic --batch-size 8
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

LAYERS = int(os.environ.get("GPT_LAYERS", "12"))
WIDTH = int(os.environ.get("GPT_WIDTH", "768"))  # 64 for each attention head
LENGTH = int(os.environ.get("GPT_LENGTH", "1024"))
VOCABULARY = int(os.environ.get("GPT_VOCABULARY", "50304"))
SAMPLES = 100_000


class Block(nn.Module):
    """Causal self-attention, then an MLP, each added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width) to the same."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, length, width of a head)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Says for each position how likely each token comes next."""

    def __init__(self, layers: int, width: int, length: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, length) of token ids to (batch, length, vocabulary) of logits."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.tokens(tokens) + self.positions(places)))
        return F.linear(x, self.tokens.weight)  # one matrix at both ends

    def make_batch(self, batch_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What `--data synthetic` trains on."""
        shape = (batch_size, self.positions.num_embeddings + 1)
        sequences = torch.randint(self.tokens.num_embeddings, shape)
        return sequences[:, :-1], sequences[:, 1:]


class RandomTokens(Dataset):
    """Pairs of a sequence and the tokens that come next in it, the same for the same index."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        sequence = torch.randint(VOCABULARY, (LENGTH + 1,), generator=generator)
        return sequence[:-1], sequence[1:]


def model() -> nn.Module:
    """124 million parameters, as GPT-2, unless the variables above say otherwise."""
    return GPT(LAYERS, WIDTH, LENGTH, VOCABULARY)


def tokens() -> Dataset:
    return RandomTokens()
