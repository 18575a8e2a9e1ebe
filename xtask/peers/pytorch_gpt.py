"""The models that bench-vram trains, in PyTorch: same shapes, same batch, same optimizer, plain f32.

`--shape gpt-124m` is GPT-2 small, its vocabulary padded to 50,304 as in the preset, on one sequence of 64 tokens under AdamW;
`--shape llama-1.1b` is the Llama of that size, under AdamW, too; `--shape toy` is the default run's network on 1,024 tokens
under Muon and AdamW. Tokens are random, since the cost of a step
does not depend on them. The code is idiomatic PyTorch, with its fused attention and its own AdamW, without compilation or
narrower types.

On a GPU (`--device cuda`) there are three ways to train under a cap (`--cap-bytes`) of PyTorch's allocator. `--mode memory`
keeps everything on the GPU. `--mode activations` keeps saved activations in page-locked host memory (`save_on_cpu`). `--mode
fsdp` keeps parameters, gradients and moments in host memory and steps them there (FSDP2, `CPUOffloadPolicy`, one process).
Products round their factors to TF32 on the GPU, as the trainer's do. The script exits with one line and code 4 if memory does
not suffice, and with code 3 if PyTorch has no CUDA.

Prints one JSON object. The median omits the first step.
"""

import argparse
import contextlib
import json
import math
import resource
import statistics
import sys
import time

SHAPES = {
    "gpt-124m": dict(
        layers=12, heads=12, width=768, vocabulary=50304, positions=1024, batch=1, time=64, family="gpt2"
    ),
    "llama-1.1b": dict(
        layers=22, heads=32, key_heads=4, width=2048, inner=5632, vocabulary=32000, positions=2048, batch=1, time=64, family="llama"
    ),
    "toy": dict(
        layers=4, heads=4, width=128, vocabulary=512, positions=128, batch=16, time=64, family="nanochat"
    ),
}

MODES = ("memory", "activations", "fsdp")

WITHOUT_CUDA, OUT_OF_MEMORY = 3, 4


def arguments(words=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--steps", type=int, required=True, help="2 or more")
    parser.add_argument("--threads", type=int, default=0, help="0 leaves the choice to PyTorch")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--mode", choices=MODES, default="memory", help="where what is trained lies; all but memory on a GPU")
    parser.add_argument("--cap-bytes", type=int, help="device memory that may be taken, on a GPU")
    for name in ("batch", "time", "vocabulary"):
        parser.add_argument(f"--{name}", type=int, help="in place of the shape's own")
    found = parser.parse_args(words)
    if found.steps < 2:
        parser.error("--steps must be 2 or more: the first is left out")
    if any(getattr(found, name) is not None and getattr(found, name) < 1 for name in ("batch", "time", "vocabulary")):
        parser.error("--batch, --time and --vocabulary must be 1 or more")
    if found.threads < 0:
        parser.error("--threads must be 0 or more")
    if found.device != "cpu" and found.device.split(":")[0] != "cuda":
        parser.error(f"--device {found.device} is neither cpu nor cuda nor cuda:N")
    if found.device == "cpu" and (found.mode != "memory" or found.cap_bytes is not None):
        parser.error("--mode and --cap-bytes are about a GPU's memory: add --device cuda")
    if found.cap_bytes is not None and found.cap_bytes < 1:
        parser.error("--cap-bytes must be 1 or more")
    shape = dict(SHAPES[found.shape])
    shape.update({name: value for name, value in vars(found).items() if name in shape and value is not None})
    if found.mode == "fsdp" and shape["family"] == "nanochat":
        parser.error(f"--mode fsdp is for models under AdamW alone, and matrices of {found.shape} are under Muon")
    if shape["time"] > shape["positions"]:
        parser.error(f"--time {shape['time']} is longer than the {shape['positions']} positions of {found.shape}")
    return found, shape


def networks(torch):
    nn, F = torch.nn, torch.nn.functional

    class Gpt2Block(nn.Module):
        def __init__(self, shape):
            super().__init__()
            width, self.heads = shape["width"], shape["heads"]
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, time, width = x.shape
            parts = self.qkv(self.norm_1(x)).split(width, dim=2)
            q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
            return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self, shape):
            super().__init__()
            self.wte = nn.Embedding(shape["vocabulary"], shape["width"])
            self.wpe = nn.Embedding(shape["positions"], shape["width"])
            self.blocks = nn.ModuleList(Gpt2Block(shape) for _ in range(shape["layers"]))
            self.norm = nn.LayerNorm(shape["width"])
            for weight in (self.wte.weight, self.wpe.weight):
                nn.init.normal_(weight, std=0.02)

        def forward(self, ids):
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            return self.norm(x) @ self.wte.weight.T

        def hidden_matrices(self):
            return []

    class LlamaBlock(nn.Module):
        def __init__(self, shape):
            super().__init__()
            width, inner, self.heads, self.key_heads = (shape[name] for name in ("width", "inner", "heads", "key_heads"))
            linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
            keys = width // self.heads * self.key_heads
            self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
            self.q, self.k, self.v, self.out = linear(width, width), linear(width, keys), linear(width, keys), linear(width, width)
            self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)

        def forward(self, x, cos, sin):
            batch, time, width = x.shape
            seen = self.norm_1(x)
            by_head = lambda part, heads: part(seen).view(batch, time, heads, -1).transpose(1, 2)
            for_all = lambda part: part.repeat_interleave(self.heads // self.key_heads, dim=1)
            q, k = turned(by_head(self.q, self.heads), cos, sin), turned(by_head(self.k, self.key_heads), cos, sin)
            v = by_head(self.v, self.key_heads)
            mixed = F.scaled_dot_product_attention(q, for_all(k), for_all(v), is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
            seen = self.norm_2(x)
            return x + self.down(F.silu(self.gate(seen)) * self.up(seen))

    class Llama(nn.Module):
        def __init__(self, shape):
            super().__init__()
            self.wte = nn.Embedding(shape["vocabulary"], shape["width"])
            self.head = nn.Linear(shape["width"], shape["vocabulary"], bias=False)
            self.blocks = nn.ModuleList(LlamaBlock(shape) for _ in range(shape["layers"]))
            self.norm = nn.RMSNorm(shape["width"], eps=1e-5)
            keep_angles(self, shape)
            nn.init.normal_(self.wte.weight, std=0.02)

        def forward(self, ids):
            x = self.wte(ids)
            # FSDP2 may leave them in host memory.
            cos, sin = (angles[: ids.shape[1]].to(x.device) for angles in (self.cos, self.sin))
            for block in self.blocks:
                x = block(x, cos, sin)
            return self.head(self.norm(x))

        def hidden_matrices(self):
            return []

    def keep_angles(model, shape):
        half = shape["width"] // shape["heads"] // 2
        angles = torch.arange(shape["positions"])[:, None] * 10000.0 ** (-torch.arange(half) / half)
        model.register_buffer("cos", angles.cos(), persistent=False)
        model.register_buffer("sin", angles.sin(), persistent=False)

    def rms(x):
        return F.rms_norm(x, (x.shape[-1],), eps=1e-6)

    class NanochatBlock(nn.Module):
        def __init__(self, shape):
            super().__init__()
            width, self.heads = shape["width"], shape["heads"]
            linear = lambda inputs, outputs: nn.Linear(inputs, outputs, bias=False)
            self.q, self.k, self.v, self.out = (linear(width, width) for _ in range(4))
            self.up, self.down = linear(width, 4 * width), linear(4 * width, width)

        def forward(self, x, cos, sin):
            batch, time, width = x.shape
            seen = rms(x)
            by_head = lambda part: part(seen).view(batch, time, self.heads, -1).transpose(1, 2)
            q, k, v = by_head(self.q), by_head(self.k), by_head(self.v)
            mixed = F.scaled_dot_product_attention(
                turned(rms(q), cos, sin), turned(rms(k), cos, sin), v, is_causal=True
            )
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
            return x + self.down(F.relu(self.up(rms(x))).square())

    def turned(x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    class Nanochat(nn.Module):
        def __init__(self, shape):
            super().__init__()
            self.wte = nn.Embedding(shape["vocabulary"], shape["width"])
            self.head = nn.Linear(shape["width"], shape["vocabulary"], bias=False)
            self.blocks = nn.ModuleList(NanochatBlock(shape) for _ in range(shape["layers"]))
            keep_angles(self, shape)

        def forward(self, ids):
            time = ids.shape[1]
            x = rms(self.wte(ids))
            for block in self.blocks:
                x = block(x, self.cos[:time], self.sin[:time])
            return 15 * torch.tanh(self.head(rms(x)) / 15)

        def hidden_matrices(self):
            return [weight for block in self.blocks for weight in block.parameters()]

    return {"gpt2": Gpt2, "llama": Llama, "nanochat": Nanochat}


class Muon:
    """Momentum, orthogonalised by five quintic iterations, with the trainer's rates."""

    def __init__(self, weights, lr=0.02, momentum=0.95, decay=0.1):
        self.weights, self.lr, self.momentum, self.decay = list(weights), lr, momentum, decay
        self.velocity = [None] * len(self.weights)

    def step(self):
        for at, weight in enumerate(self.weights):
            gradient, velocity = weight.grad, self.velocity[at]
            velocity = gradient.clone() if velocity is None else velocity.mul_(self.momentum).add_(gradient)
            self.velocity[at] = velocity
            x = gradient + self.momentum * velocity
            tall = x.shape[0] > x.shape[1]
            x = x.T if tall else x
            x = x / x.norm().clamp_min(1e-7)
            for _ in range(5):
                gram = x @ x.T
                x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
            x = x.T if tall else x
            outputs, inputs = weight.shape
            rate = self.lr * math.sqrt(max(1, outputs / inputs))
            weight.mul_(1 - self.lr * self.decay).sub_(x, alpha=rate)


def capped(torch, found):
    """The device, with its cap set."""
    device = torch.device(found.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
        if found.cap_bytes is not None:
            whole = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, found.cap_bytes / whole), device)
    return device


def built(torch, found, shape, device):
    """The model, initialised where it will lie: a processor takes many seconds for a billion weights."""
    with torch.device("cpu" if found.mode == "fsdp" else device):
        model = networks(torch)[shape["family"]](shape)
    return sharded(torch, model) if found.mode == "fsdp" else model


def sharded(torch, model):
    """The model with its parameters in host memory; each block loads its own while it is used."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    for part in [*model.blocks, model]:
        fully_shard(part, offload_policy=CPUOffloadPolicy(pin_memory=True))
    return model


def measure(torch, found, shape):
    torch.manual_seed(1337)
    if found.threads:
        torch.set_num_threads(found.threads)
    device = capped(torch, found)
    model = built(torch, found, shape, device)
    if found.mode == "activations":
        kept = lambda: torch.autograd.graph.save_on_cpu(pin_memory=True)
    else:
        kept = contextlib.nullcontext
    hidden = model.hidden_matrices()
    apart = {id(weight) for weight in hidden}
    others = [weight for weight in model.parameters() if id(weight) not in apart]
    matrices = [weight for weight in others if weight.dim() > 1]
    vectors = [weight for weight in others if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW([group for group in groups if group["params"]], lr=3e-4, betas=(0.9, 0.95))
    muon = Muon(hidden)
    seconds = []
    for _ in range(found.steps):
        tokens = torch.randint(shape["vocabulary"], (shape["batch"], shape["time"] + 1), device=device)
        begun = time.perf_counter()
        with kept():
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with torch.no_grad():
            muon.step()
        adamw.step()
        model.zero_grad(set_to_none=True)
        last = loss.item()
        seconds.append(time.perf_counter() - begun)
    median = statistics.median(seconds[1:])
    used = resource.getrusage(resource.RUSAGE_SELF)
    if found.mode == "fsdp":
        torch.distributed.destroy_process_group()
    return {
        "peer": f"PyTorch {torch.__version__}",
        "shape": found.shape,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "mode": found.mode,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "threads": torch.get_num_threads(),
        "steps": found.steps,
        "tokens": found.steps * shape["batch"] * shape["time"],
        "seconds": sum(seconds),
        "loss": last,
        "peak_device_bytes": torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None,
        "peak_host_bytes": 1024 * used.ru_maxrss,
        "step_ms_median": 1000 * median,
        "tokens_per_second": shape["batch"] * shape["time"] / median,
        "cpu_seconds": used.ru_utime + used.ru_stime,
    }


def main():
    found, shape = arguments()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"PyTorch cannot be imported ({error}); `pip install torch` in the environment of {sys.executable}")
    if found.device != "cpu" and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} in {sys.executable} has no CUDA that works here", file=sys.stderr)
        sys.exit(WITHOUT_CUDA)
    try:
        print(json.dumps(measure(torch, found, shape)))
    except torch.OutOfMemoryError as error:
        print(str(error).splitlines()[0], file=sys.stderr)
        sys.exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
