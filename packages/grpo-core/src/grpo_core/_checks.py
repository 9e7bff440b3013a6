"""What is refused at the door: every message names the argument, what was expected and what came."""

from collections.abc import Sequence

import torch
from torch import Tensor


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise ValueError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")


def check_positive(name: str, value: float) -> None:
    """Raise ValueError unless ``value`` is a finite number above zero."""
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}: expected a finite number above 0, got {value!r}")


def check_floating(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless ``tensor`` holds floating-point numbers."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise ValueError(f"{name}: expected a floating-point dtype, got {tensor.dtype} of shape {tuple(tensor.shape)}")


def check_mask(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless ``tensor`` is boolean, padded [B, T] or packed [N]."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: expected a boolean tensor, got {type(tensor).__name__}")
    if tensor.dtype != torch.bool:
        raise ValueError(f"{name}: expected dtype torch.bool, got {tensor.dtype} of shape {tuple(tensor.shape)}")
    if tensor.dim() not in (1, 2):
        raise ValueError(f"{name}: expected shape [B, T] or [N], got {tuple(tensor.shape)}")


def check_integer(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless ``tensor`` holds integers (bool is not one)."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: expected an integer tensor, got {type(tensor).__name__}")
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ValueError(f"{name}: expected an integer dtype, got {tensor.dtype} of shape {tuple(tensor.shape)}")


def check_shape(name: str, tensor: Tensor, expected: Sequence[int], like: str = "") -> None:
    """Raise ValueError unless ``tensor`` has exactly the ``expected`` shape (``like``: whose shape that is)."""
    if tuple(tensor.shape) != tuple(expected):
        whose = f" (the shape of {like})" if like else ""
        raise ValueError(f"{name}: expected shape {tuple(expected)}{whose}, got {tuple(tensor.shape)}")


def check_device(name: str, tensor: Tensor, other: Tensor, like: str) -> None:
    """Raise ValueError unless both tensors live on one device."""
    if tensor.device != other.device:
        raise ValueError(f"{name}: expected device {other.device} (the device of {like}), got {tensor.device}")


def check_like(name: str, tensor: Tensor, other: Tensor, like: str) -> None:
    """Raise ValueError unless ``tensor`` is floating-point and shares shape and device with ``other``."""
    check_floating(name, tensor)
    check_shape(name, tensor, other.shape, like)
    check_device(name, tensor, other, like)


def widen(tensor: Tensor) -> Tensor:
    """float32, or float64 where it came as that: half precision is for storage, never for sums or ratios."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
