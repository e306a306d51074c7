"""The models of `tessera bench pet` as PyTorch modules: random weights from a fixed seed.

Written out instead of taken from torchvision or transformers, so that nothing is downloaded and the
shapes are the papers' (PET, OSDI'21, §8.1): CSRNet is its dilated back-end of six convolutions,
"bert_paper" the paper's stand-in without norms and output projections, "bert" BERT-base, "table3_…"
single and parallel operators of its Table 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 20211


@dataclass(frozen=True)
class Model:
    """How to make a model, and the shape of its input for a batch."""

    make: Callable[[], Any]
    shape: Callable[[int], tuple[int, ...]]


def _nn() -> Any:
    import torch

    return torch.nn


def _convolution(c: int, f: int, size: Any, stride: Any = 1, pad: Any = 0, dims: int = 2) -> Any:
    """Convolution, batch norm, relu: the block of residual nets and Inception."""
    nn = _nn()
    conv, norm = (nn.Conv2d, nn.BatchNorm2d) if dims == 2 else (nn.Conv3d, nn.BatchNorm3d)
    return nn.Sequential(conv(c, f, size, stride, pad, bias=False), norm(f), nn.ReLU())


def _space_then_time(c: int, f: int, stride: int) -> Any:
    """A 3×3×3 convolution of films as one of images and one along time, of as many weights."""
    middle = (c * f * 27) // (c * 9 + f * 3)
    return _nn().Sequential(
        *_convolution(c, middle, (1, 3, 3), (1, stride, stride), (0, 1, 1), 3),
        *_convolution(middle, f, (3, 1, 1), (stride, 1, 1), (1, 0, 0), 3),
    )


def _residual(c: int, f: int, stride: int, dims: int, factored: bool = False) -> Any:
    nn = _nn()

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            if factored:
                self.first, self.second = _space_then_time(c, f, stride), _space_then_time(f, f, 1)
            else:
                self.first = _convolution(c, f, 3, stride, 1, dims)
                self.second = _convolution(f, f, 3, 1, 1, dims)
            self.second = self.second[:-1]
            same = stride == 1 and c == f
            self.beside = nn.Identity() if same else _convolution(c, f, 1, stride, 0, dims)[:2]
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.second(self.first(x)) + self.beside(x))

    return Block()


def _stages(dims: int, factored: bool = False) -> list[Any]:
    blocks, c = [], 64
    for f, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [_residual(c, f, stride, dims, factored), _residual(f, f, 1, dims, factored)]
        c = f
    return blocks


def resnet18() -> Any:
    """ResNet-18 (He et al., 2015), 1000 classes."""
    nn = _nn()
    return nn.Sequential(
        _convolution(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1), *_stages(2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    )  # fmt: skip


def resnet3d18() -> Any:
    """R3D-18 (Tran et al., 2018), 400 classes."""
    nn = _nn()
    return nn.Sequential(
        _convolution(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), 3), *_stages(3),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400),
    )  # fmt: skip


def r2plus1d18() -> Any:
    """R(2+1)D-18 (Tran et al., 2018), 400 classes: R3D-18 in space, then time."""
    nn = _nn()
    return nn.Sequential(
        *_convolution(3, 45, (1, 7, 7), (1, 2, 2), (0, 3, 3), 3),
        *_convolution(45, 64, (3, 1, 1), 1, (1, 0, 0), 3), *_stages(3, True),
        nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(512, 400),
    )  # fmt: skip


def csrnet() -> Any:
    """CSRNet's back-end (Li et al., 2018): six 3×3 convolutions of dilation 2, each with a relu."""
    nn = _nn()
    layers, c = [], 512
    for f in (512, 512, 512, 256, 128, 64):
        layers += [nn.Conv2d(c, f, 3, padding=2, dilation=2, bias=False), nn.ReLU()]
        c = f
    return nn.Sequential(*layers)


def _branches(*branches: Any) -> Any:
    import torch

    nn = _nn()

    class Branches(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.branches = nn.ModuleList(branches)

        def forward(self, x: Any) -> Any:
            return torch.cat([b(x) for b in self.branches], 1)

    return Branches()


def inception() -> Any:
    """Inception-v3 (Szegedy et al., 2015) without the auxiliary head, 1000 classes."""
    nn = _nn()
    conv, row, column = _convolution, (1, 7), (7, 1)

    def a(c: int, pool: int) -> Any:
        return _branches(
            conv(c, 64, 1),
            nn.Sequential(conv(c, 48, 1), conv(48, 64, 5, 1, 2)),
            nn.Sequential(conv(c, 64, 1), conv(64, 96, 3, 1, 1), conv(96, 96, 3, 1, 1)),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(c, pool, 1)),
        )

    def b(c: int) -> Any:
        return _branches(
            conv(c, 384, 3, 2),
            nn.Sequential(conv(c, 64, 1), conv(64, 96, 3, 1, 1), conv(96, 96, 3, 2)),
            nn.MaxPool2d(3, 2),
        )

    def c(k: int) -> Any:
        def along(f: int, g: int, size: tuple[int, int]) -> Any:
            return conv(f, g, size, 1, (size[0] // 2, size[1] // 2))

        return _branches(
            conv(768, 192, 1),
            nn.Sequential(conv(768, k, 1), along(k, k, row), along(k, 192, column)),
            nn.Sequential(conv(768, k, 1), along(k, k, column), along(k, k, row),
                          along(k, k, column), along(k, 192, row)),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(768, 192, 1)),
        )  # fmt: skip

    def d() -> Any:
        return _branches(
            nn.Sequential(conv(768, 192, 1), conv(192, 320, 3, 2)),
            nn.Sequential(conv(768, 192, 1), conv(192, 192, row, 1, (0, 3)),
                          conv(192, 192, column, 1, (3, 0)), conv(192, 192, 3, 2)),
            nn.MaxPool2d(3, 2),
        )  # fmt: skip

    def e(c: int) -> Any:
        def both(f: int) -> Any:
            return _branches(conv(f, 384, (1, 3), 1, (0, 1)), conv(f, 384, (3, 1), 1, (1, 0)))

        return _branches(
            conv(c, 320, 1),
            nn.Sequential(conv(c, 384, 1), both(384)),
            nn.Sequential(conv(c, 448, 1), conv(448, 384, 3, 1, 1), both(384)),
            nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(c, 192, 1)),
        )

    return nn.Sequential(
        conv(3, 32, 3, 2), conv(32, 32, 3), conv(32, 64, 3, 1, 1), nn.MaxPool2d(3, 2),
        conv(64, 80, 1), conv(80, 192, 3), nn.MaxPool2d(3, 2),
        a(192, 32), a(256, 64), a(288, 64), b(288), c(128), c(160), c(160), c(192), d(), e(1280),
        e(2048), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000),
    )  # fmt: skip


def _transformer(paper: bool) -> Any:
    """Twelve layers of width 768 over embedded tokens."""
    import torch

    nn = _nn()

    class Layer(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(768, 768, bias=not paper) for _ in range(3))
            inner = 768 if paper else 3072
            self.up, self.down = nn.Linear(768, inner, not paper), nn.Linear(inner, 768, not paper)
            self.act = nn.ReLU() if paper else nn.GELU()
            if not paper:
                self.out = nn.Linear(768, 768)
                self.norms = nn.ModuleList(nn.LayerNorm(768, eps=1e-12) for _ in range(2))

        def forward(self, x: Any) -> Any:
            b, s, _ = x.shape
            heads = [m(x).reshape(b, s, 12, 64).transpose(1, 2) for m in (self.q, self.k, self.v)]
            scores = heads[0] @ heads[1].transpose(2, 3)
            y = torch.softmax(scores if paper else scores / 8, -1) @ heads[2]
            y = y.transpose(1, 2).reshape(b, s, 768)
            if paper:
                return x + self.down(self.act(self.up(y)))
            x = self.norms[0](x + self.out(y))
            return self.norms[1](x + self.down(self.act(self.up(x))))

    return nn.Sequential(*(Layer() for _ in range(12)))


def _operators(name: str) -> Any:
    """The operators of PET's Table 3; parallel ones are joined, so that there is one result."""
    nn = _nn()
    if name == "conv":
        return nn.Conv2d(48, 64, 5, padding=2, bias=False)
    if name == "dilated":
        return nn.Conv2d(512, 256, 3, padding=2, dilation=2, bias=False)
    if name == "parallel":
        return _branches(*(nn.Conv2d(768, f, 1, bias=False) for f in (192, 192, 160, 160)))
    return _branches(*(nn.Linear(768, 768, bias=False) for _ in range(3)))


MODELS: dict[str, Model] = {
    "resnet18": Model(resnet18, lambda b: (b, 3, 224, 224)),
    "csrnet14": Model(csrnet, lambda b: (b, 512, 14, 14)),
    "csrnet28": Model(csrnet, lambda b: (b, 512, 28, 28)),
    "csrnet56": Model(csrnet, lambda b: (b, 512, 56, 56)),
    "inception": Model(inception, lambda b: (b, 3, 299, 299)),
    "bert_paper": Model(lambda: _transformer(True), lambda b: (b, 512, 768)),
    "bert": Model(lambda: _transformer(False), lambda b: (b, 128, 768)),
    "resnet3d18": Model(resnet3d18, lambda b: (b, 3, 16, 112, 112)),
    "r2plus1d18": Model(r2plus1d18, lambda b: (b, 3, 16, 112, 112)),
    "table3_conv": Model(lambda: _operators("conv"), lambda b: (b, 48, 38, 38)),
    "table3_dilated": Model(lambda: _operators("dilated"), lambda b: (b, 512, 14, 14)),
    "table3_parallel": Model(lambda: _operators("parallel"), lambda b: (b, 768, 18, 18)),
    "table3_matmul": Model(lambda: _operators("matmul"), lambda b: (b, 512, 768)),
}


def build(name: str) -> Any:
    """The module in evaluation mode; norms have statistics that are not those of a fresh one."""
    import torch

    torch.manual_seed(SEED)
    module = MODELS[name].make()
    for part in module.modules():
        if hasattr(part, "running_var"):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
            torch.nn.init.normal_(part.bias, 0, 0.1)
    return module.eval()


def example(name: str, batch: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(SEED + batch)
    return torch.randn(MODELS[name].shape(batch), generator=generator)


def export(name: str, batch: int, path: Path) -> None:
    """Writes the model as ONNX, as PyTorch's tracing exporter makes it (batch norms are folded)."""
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            build(name), (example(name, batch),), str(path), dynamo=False, opset_version=17,
            input_names=["x"], output_names=["y"],
        )  # fmt: skip
