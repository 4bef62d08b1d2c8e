"""Thirteen programs of bench/programs.c in PyTorch, for bench/peers.py: functions of two square matrices."""
import torch
from torch.nn import functional as nn

ROUNDS = 20


def cdf(d):
    return (torch.erf(d * 0.70710678) + 1.0) * 0.5


def black_scholes(x, y):
    price, strike = torch.exp(x) + 1.0, torch.exp(y) + 1.0
    d1 = (torch.log(price / strike) + 0.07) * 5.0
    d2 = d1 - 0.2
    return price * cdf(d1) - strike * cdf(d2) * 0.95


def attention(x, y):
    scores = torch.mm(x, y.t()) * 0.125
    weights = torch.exp(scores - scores.amax(1, keepdim=True))
    return torch.mm(weights / weights.sum(1, keepdim=True), y)


def small_cnn(x, y):
    corner = y[0:3, 0:12].contiguous()
    a = torch.relu(nn.conv2d(x[None, None], corner.view(4, 1, 3, 3), padding=1))
    b = torch.relu(nn.conv2d(a, corner.view(1, 4, 3, 3), padding=1))
    return b.mean((2, 3))


def moving_statistics(x, y):
    window, n = 16, x.shape[0] - 16
    total, squares = torch.zeros(n, x.shape[1]), torch.zeros(n, x.shape[1])
    for i in range(window):
        at = x[i:n + i] + y[0:n]
        total += at
        squares += at * at
    mean = total * (1.0 / window)
    return squares * (1.0 / window) - mean * mean


def jacobi(x, y):
    state = x.clone()
    for _ in range(ROUNDS):
        inner = torch.roll(state, 1, 0) + torch.roll(state, 1, 1) + y
        state.copy_(inner * 0.25)
    return state


def k_means(x, y):
    centres = y[0:16].clone()
    for _ in range(ROUNDS):
        norms = (centres * centres).sum(1)
        nearest = torch.argmin(norms - torch.mm(x, centres.t()) * 2.0, 1)
        member = nn.one_hot(nearest, 16).float()
        centres.copy_(torch.mm(member.t(), x) / (member.sum(0) + 1.0).unsqueeze(1))
    return centres


def logistic_regression(x, y):
    w = torch.zeros(x.shape[1], 64)
    labels = (y[:, 0:64] > 0.0).float()
    for _ in range(ROUNDS):
        p = torch.sigmoid(torch.mm(x, w))
        w -= torch.mm(x.t(), p - labels) * 0.001
    return w


def adam(x, y):
    w, m, v = x.clone(), torch.zeros_like(x), torch.zeros_like(x)
    for _ in range(ROUNDS):
        g = w - y
        m *= 0.9
        m += g * 0.1
        v *= 0.999
        v += g * g * 0.001
        w -= m / (torch.sqrt(v) + 1e-8) * 0.01
    return w


def life(x, y):
    cells = (x > 0.0).float()
    for _ in range(ROUNDS):
        n = sum(torch.roll(cells, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if dx or dy)
        cells.copy_((n == 3.0).float() + (n == 2.0).float() * cells)
    return cells


def two_operators(x, y):
    state = x
    for _ in range(ROUNDS):
        state = state * 0.5 + y
    return state


def jacobi_sweep(x, y):
    state = x
    for _ in range(ROUNDS):
        residual = y - torch.sin(state) * 0.3
        state = state + residual * 0.25
    return state


def mandelbrot(x, y):
    re, im, count = x, y, torch.zeros_like(x)
    for _ in range(ROUNDS):
        rr, ii = re * re, im * im
        count += (rr + ii < 4.0).float()
        re, im = torch.clamp(rr - ii + x, -8.0, 8.0), torch.clamp(re * im * 2.0 + y, -8.0, 8.0)
    return count


def conjugate_gradient(x, y):
    at, r, p = torch.zeros_like(y), y, y
    for _ in range(ROUNDS):
        ap = p * 3.0 + p * torch.abs(x)
        rr = (r * r).sum()
        alpha = rr / (p * ap).sum()
        at = at + p * alpha
        r = r - ap * alpha
        beta = (r * r).sum() / rr
        p = r + p * beta
        if beta.item() < 0.0:
            break
    return at


BODIES = {"program_" + f.__name__.replace("black_scholes", "black-scholes").replace("k_means", "k-means"): f
          for f in (black_scholes, attention, small_cnn, moving_statistics, jacobi, k_means, logistic_regression, adam,
                    life, two_operators, jacobi_sweep, mandelbrot, conjugate_gradient)}
BOUND = 1e-2  # a cell or a cluster at the edge may fall to the other side
