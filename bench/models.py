"""The models of the examples and of the benchmark's training rows, in PyTorch: parameters have the names that
Etch's have, so that weights go from one to the other as safetensors."""
import torch
from torch import nn

WIDTH, HEADS, LAYERS, CONTEXT = 128, 4, 5, 64


def mlp(*sizes):
    """Linear layers with ReLU between them, behind a Flatten."""
    layers = [nn.Flatten(1)]
    for i in range(len(sizes) - 1):
        layers += ([nn.ReLU()] if i else []) + [nn.Linear(sizes[i], sizes[i + 1])]
    return nn.Sequential(*layers)


def cnn():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2, padding=1),
                         nn.ReLU(), nn.Flatten(1), nn.Linear(512, 10))


def pool_cnn():
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
                         nn.ReLU(), nn.Flatten(1), nn.Linear(512, 10))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(approximate="tanh"),
                                        nn.Linear(4 * WIDTH, WIDTH))

    def attend(self, x):
        a, (n, length, _) = self.attention, x.shape
        qkv = nn.functional.linear(x, a.in_proj_weight, a.in_proj_bias)
        q, k, v = qkv.view(n, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return a.out_proj(y.transpose(1, 2).reshape(n, length, WIDTH))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        for i in range(LAYERS):
            self.add_module(f"block{i}", Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, symbols)

    def forward(self, x):
        h = self.symbols(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for i in range(LAYERS):
            h = getattr(self, f"block{i}")(h)
        return self.head(self.norm(h))
