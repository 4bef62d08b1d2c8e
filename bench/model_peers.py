"""The models of bench/models.c in PyTorch, JAX (model_jax.py), ONNX Runtime and OpenVINO, for bench/peers.py: the
same layers over the weights that etch_bench has written, and their results compared with Etch's before anything is
timed. On a GPU the peers are PyTorch's."""
import io, itertools

import numpy
import safetensors.torch
import torch
from torch.nn import functional as nn

import programs
from torch_graphs import marked

BOUNDS = {"f32": 1e-4, "bf16": 5e-2}
QUANTIZED = {"decode_int8": 0.05, "decode_int4": 0.4}  # two ways to round, the norm of the difference
WIDTHS = {"encoder": (1, 384, 12), "minilm": (6, 384, 12), "bert_base": (12, 768, 12), "llama_prefill": (1, 1024, 8),
          "llama_decode": (1, 1024, 8), "decode_int8": (4, 2048, 16), "decode_int4": (4, 2048, 16),
          "resnet_block": (1, 64, 0), "resnet50": (1, 0, 0), "lstm_cell": (1, 256, 0)}
# Those of a GPU; the last three are attention and a product alone.
GPU_WIDTHS = {"bert_f32": (6, 384, 12), "bert_bf16": (12, 768, 12), "llama_512": (4, 2048, 16),
              "llama_2048": (2, 2048, 16), "llama_decode": (1, 1024, 8), "sdpa_full": (0, 128, 16),
              "sdpa_causal": (0, 128, 16), "product": (0, 4096, 0)}
WIDTHS |= GPU_WIDTHS
DEVICE = "cpu"  # set by peers.py


# ---- what the models are made of ----


class Torch:
    """Layers as functions of tensors."""
    gelu, silu, relu, sigmoid, tanh = nn.gelu, nn.silu, torch.relu, torch.sigmoid, torch.tanh
    linear = nn.linear

    @staticmethod
    def layer_norm(x, w, b):
        return nn.layer_norm(x, x.shape[-1:], w, b, 1e-5)

    @staticmethod
    def rms_norm(x, w):
        if torch.jit.is_tracing():  # what the exporter to ONNX does not know
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * w
        return nn.rms_norm(x, x.shape[-1:], w, 1e-5)

    @staticmethod
    def split(x, heads):
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    @staticmethod
    def merge(x):
        return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)

    @staticmethod
    def attend(q, k, v, causal):
        return nn.scaled_dot_product_attention(q, k, v, is_causal=causal)

    @staticmethod
    def rotate(x, cos, sin):
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat((-high, low), -1) * sin

    @staticmethod
    def remember(cache, row, length):
        cache[:, :, length - 1:length] = row
        return cache[:, :, :length]

    @staticmethod
    def conv(x, w, stride):
        return nn.conv2d(x, w, stride=stride, padding=w.shape[2] // 2)

    @staticmethod
    def batch_norm(x, w, b, mean, root):
        return nn.batch_norm(x, mean, root * root, w, b)

    @staticmethod
    def max_pool(x):
        return nn.max_pool2d(x, 3, 2, 1)

    @staticmethod
    def mean(x):
        return x.mean((2, 3))


# ---- the models: F has the layers, w gives the weights in turn ----


def encoder(F, x, w, name, length):
    layers, _, heads = WIDTHS[name]
    for _ in range(layers):
        q, k, v = (F.split(F.linear(x, next(w), next(w)), heads) for _ in range(3))
        seen = F.merge(F.attend(q, k, v, False))
        y = x + F.linear(seen, next(w), next(w))
        y = F.layer_norm(y, next(w), next(w))
        inner = F.gelu(F.linear(y, next(w), next(w)))
        x = y + F.linear(inner, next(w), next(w))
        x = F.layer_norm(x, next(w), next(w))
    return x


def gated_unit(F, x, w):
    gate = F.silu(F.linear(x, next(w)))
    up = F.linear(x, next(w))
    return F.linear(gate * up, next(w))


def llama_block(F, x, w, heads, cos, sin):
    y = F.rms_norm(x, next(w))
    q = F.rotate(F.split(F.linear(y, next(w)), heads), cos, sin)
    k = F.rotate(F.split(F.linear(y, next(w)), heads), cos, sin)
    v = F.split(F.linear(y, next(w)), heads)
    x = x + F.linear(F.merge(F.attend(q, k, v, True)), next(w))
    return x + gated_unit(F, F.rms_norm(x, next(w)), w)


def llama(F, x, w, name, length):
    layers, _, heads = WIDTHS[name]
    cos, sin = next(w), next(w)
    for _ in range(layers):
        x = llama_block(F, x, w, heads, cos, sin)
    return x


def llama_decode(F, x, w, name, length):
    heads = WIDTHS[name][2]
    cos, sin = next(w)[length - 1:length], next(w)[length - 1:length]
    y = F.rms_norm(x, next(w))
    q = F.rotate(F.split(F.linear(y, next(w)), heads), cos, sin)
    k = F.rotate(F.split(F.linear(y, next(w)), heads), cos, sin)
    v = F.split(F.linear(y, next(w)), heads)
    k, v = F.remember(next(w), k, length), F.remember(next(w), v, length)
    x = x + F.linear(F.merge(F.attend(q, k, v, False)), next(w))
    return x + gated_unit(F, F.rms_norm(x, next(w)), w)


def convolution(F, x, w, stride=1):
    y = F.conv(x, next(w), stride)
    return F.batch_norm(y, next(w), next(w), next(w), next(w))


def bottleneck(F, x, w, widens, stride):
    y = F.relu(convolution(F, x, w))
    y = F.relu(convolution(F, y, w, stride))
    y = convolution(F, y, w)
    if widens:
        x = convolution(F, x, w, stride)
    return F.relu(x + y)


def resnet_block(F, x, w, name, length):
    return bottleneck(F, x, w, False, 1)


def resnet50(F, x, w, name, length):
    x = F.max_pool(F.relu(convolution(F, x, w, 2)))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for i in range(blocks):
            x = bottleneck(F, x, w, i == 0, 2 if stage and i == 0 else 1)
    return F.linear(F.mean(x), next(w), next(w))


def lstm_cell(F, x, w, name, length):
    x, h, c = x[0], x[1], x[2]
    gates = F.linear(x, next(w), next(w)) + F.linear(h, next(w), next(w))
    n = c.shape[1]
    i, f, g, o = (gates[:, k * n:(k + 1) * n] for k in range(4))
    c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
    return F.sigmoid(o) * F.tanh(c)


def sdpa(F, q, w, name, length):
    return F.attend(q, next(w), next(w), name == "sdpa_causal")


def product(F, x, w, name, length):
    return x @ next(w)


FORWARD = {"encoder": encoder, "minilm": encoder, "bert_base": encoder, "llama_prefill": llama,
           "llama_decode": llama_decode, "resnet_block": resnet_block, "resnet50": resnet50, "lstm_cell": lstm_cell,
           "bert_f32": encoder, "bert_bf16": encoder, "llama_512": llama, "llama_2048": llama, "sdpa_full": sdpa,
           "sdpa_causal": sdpa, "product": product}


# ---- the ways to run them ----


class Model(torch.nn.Module):
    def __init__(self, name, weights, length):
        super().__init__()
        self.name, self.length = name, length
        for i, value in enumerate(weights):
            self.register_buffer(f"w{i}", value)

    def forward(self, x):
        weights = (self._buffers[f"w{i}"] for i in range(len(self._buffers)))
        return FORWARD[self.name](Torch, x, weights, self.name, self.length)


class Row:
    """What etch_bench has written of one row."""

    def __init__(self, path, fields):
        self.name, self.size, self.dtype = (fields[k] for k in ("workload", "size", "dtype"))
        self.path = path
        self.length = int(self.size) if "decode" in self.name else 0
        t = safetensors.torch.load_file(self.path, DEVICE)
        self.x, self.y = t.pop("x"), t.pop("y").float()
        self.weights = [t[str(i)] for i in range(len(t))]

    def check(self, label, y, bound=None):
        y = torch.as_tensor(numpy.asarray(y, numpy.float32)) if not isinstance(y, torch.Tensor) else y.float()
        error = float((y - self.y).norm() / self.y.norm())
        if self.name in QUANTIZED and self.length > 1:
            return  # the caches differ
        if not error <= (bound or QUANTIZED.get(self.name) or BOUNDS[self.dtype]):
            raise ValueError(f"{label} differs from Etch by {error:.2g}")


def torch_ways(row, modes=("default",)):
    model = Model(row.name, row.weights, row.length)
    yield "torch eager", lambda: lambda: model(row.x)
    for mode in modes:
        compiled = marked(torch.compile(model, dynamic=False, mode=mode), mode)
        label = "torch.compile" if mode == "default" else "torch.compile " + mode
        yield label, lambda compiled=compiled: lambda: compiled(row.x)


def backends(row):
    """Attention by backends of PyTorch's in place of the one that it chooses."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    model = Model(row.name, row.weights, row.length)

    def way(backend):
        def call():
            with sdpa_kernel(backend):
                return model(row.x)
        return call

    yield "torch flash", lambda: way(SDPBackend.FLASH_ATTENTION)
    yield "torch cudnn", lambda: way(SDPBackend.CUDNN_ATTENTION)


def gpu_ways(row):
    if row.name == "product":
        yield from torch_ways(row, ())
    elif FORWARD[row.name] is sdpa:
        yield from torch_ways(row, ())
        yield from backends(row)
    else:
        yield from torch_ways(row, ("default", "reduce-overhead"))


def onnx_way(row, threads):
    import onnxruntime
    file = io.BytesIO()
    torch.onnx.export(Model(row.name, row.weights, row.length), (row.x,), file, dynamo=False, opset_version=20,
                      input_names=["x"])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if threads == 1 else "1")
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    x = row.x.numpy()
    return lambda: session.run(None, {"x": x})[0]


def openvino_way(row, threads):
    import openvino
    weights = [t.float() if t.dtype == torch.bfloat16 else t for t in row.weights]
    model = openvino.convert_model(Model(row.name, weights, 0), example_input=row.x.float(),
                                   input=list(row.x.shape))
    hint = {"INFERENCE_PRECISION_HINT": row.dtype, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = openvino.Core().compile_model(model, "CPU", hint)
    request, x = compiled.create_infer_request(), row.x.float().numpy()
    return lambda: request.infer({0: x}, share_inputs=True, share_outputs=True)[0]


def program_ways(row):
    body, other = programs.BODIES[row.name], row.weights[0]
    compiled = torch.compile(body, dynamic=False)
    yield "torch eager", lambda: lambda: body(row.x, other)
    yield "torch.compile", lambda: lambda: compiled(row.x, other)


def limits():
    """The library's products under PyTorch, as limits."""
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        x = (torch.randn(1024, 1024) / 32).to(dtype)
        yield "torch product " + name, lambda x=x: torch.mm(x, x)


def quantized(size):
    """PyTorch's products with weights of few bits, from memory, too; x is bf16, which they are made for."""
    rows, bits = int(size.split("x")[0]), size.split("int")[1].split()[0]
    x, side, turn = torch.randn(rows, 4096, dtype=torch.bfloat16), 4096, itertools.count()
    if bits == "8":
        pool = [torch.randint(-127, 127, (side, side), dtype=torch.int8) for _ in range(16)]
        scales = torch.rand(side, dtype=torch.bfloat16)
        yield "torch int8pack", lambda: torch._weight_int8pack_mm(x, pool[next(turn) % 16], scales)
    elif bits in ("4/32", "4/64", "4/128"):
        group, ops = int(bits[2:]), torch.ops.aten
        pool = [ops._convert_weight_to_int4pack_for_cpu(torch.randint(0, 15, (side, side), dtype=torch.int32), 1)
                for _ in range(32)]
        scales = torch.rand(side // group, side, 2, dtype=torch.bfloat16)
        yield "torch int4pack", lambda: ops._weight_int4pack_mm_for_cpu(x, pool[next(turn) % 32], group, scales)


def ways(row, threads):
    """(name, a function that makes a call) of each way to run a row."""
    if DEVICE == "cuda":
        yield from gpu_ways(row)
        return
    if row.name in QUANTIZED:
        import llama_peer
        yield "llama.cpp", lambda: llama_peer.llama_way(row, *WIDTHS[row.name], threads)
        return
    import model_jax
    yield from torch_ways(row)
    yield "jax.jit", lambda: model_jax.jax_way(row)
    if row.name == "llama_decode":
        return  # no cache in place
    if row.dtype == "f32":
        yield "onnxruntime", lambda: onnx_way(row, threads)
    yield "openvino", lambda: openvino_way(row, threads)
