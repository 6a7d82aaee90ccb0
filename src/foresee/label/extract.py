"""Features of image networks that others trained: a folder of transformers or timm, or torchvision.

Weights are read from safetensors, or by torch's ``weights_only``: nothing is ever unpickled.
"""

import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foresee.errors import InputError

if TYPE_CHECKING:
    from torch import nn

SIDE = 224  # pixels that most of these networks read
_BY_NAME = "torchvision:"
_PART = 32  # images at once
_HALF = [0.5] * 3


def package(model: str) -> str | None:
    """The package that a model is of; None where it is no such network.

    >>> package("torchvision:resnet18"), package("own.py:build")
    ('torchvision', None)
    """
    if model.startswith(_BY_NAME):
        return "torchvision"
    if not (Path(model) / "config.json").is_file():
        return None
    return "timm" if "architecture" in _json(Path(model) / "config.json") else "transformers"


def side(model: str | None) -> int:
    """The side of the images that a model reads best.

    >>> side(None), side("torchvision:resnet18")
    (32, 224)
    """
    return 32 if model is None or package(model) is None else SIDE


def check(model: str | None) -> None:
    """Refuse a model that is not there, or whose package is not."""
    if model is None:
        return
    found = package(model)
    if found is None and not Path(model.rpartition(":")[0]).is_file():
        raise InputError(
            "--model must be the folder of a transformers or timm model, with its config.json, "
            f"torchvision:NAME, or file.py:build, got {model}: check the path"
        )
    if found is not None and find_spec(found) is None:
        raise InputError(f"--model {model} needs {found}: pip install {found}")


def extractor(model: str) -> Callable[[Any], Any]:
    """A function from images, uint8 [n 3 height width], to features [n d]."""
    check(model)
    kinds = {"transformers": _transformers, "timm": _timm, "torchvision": _torchvision}
    try:
        return kinds[package(model) or ""](model)
    except (OSError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--model {model} cannot be read as an image model: {error}") from error


def _transformers(folder: str) -> Callable[[Any], Any]:
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True).eval()
    side = getattr(model.config, "image_size", None) or SIDE
    known = _json(Path(folder, "preprocessor_config.json"))
    mean, std = known.get("image_mean", _HALF), known.get("image_std", _HALF)

    def pooled(x: Any) -> Any:
        found = model(pixel_values=x)
        if getattr(found, "pooler_output", None) is not None:
            return found.pooler_output
        hidden = found.last_hidden_state  # tokens [n k d] or a map [n d h w]
        return hidden.mean(1) if hidden.ndim == 3 else hidden.mean((2, 3))

    return features(pooled, side if isinstance(side, int) else side[0], mean, std)


def _timm(folder: str) -> Callable[[Any], Any]:
    import timm
    from safetensors.torch import load_file

    config = _json(Path(folder, "config.json"))
    name, looks = config["architecture"], config.get("pretrained_cfg", {})
    if not timm.is_model(name):  # a name with a colon would be fetched from elsewhere
        raise InputError(f"--model {folder}: timm knows no {name!r}: update timm")
    model = timm.create_model(
        name, pretrained=False, num_classes=0, **config.get("model_args", {})
    ).eval()
    weights = load_file(Path(folder, "model.safetensors"))
    missing, _ = model.load_state_dict(weights, strict=False)  # those of the head are left over
    if missing:
        raise InputError(f"--model {folder}: model.safetensors has no {missing[0]}: fetch it anew")
    side = looks.get("input_size", [3, SIDE, SIDE])[1]
    return features(model, side, looks.get("mean", _HALF), looks.get("std", _HALF))


def _torchvision(model: str) -> Callable[[Any], Any]:
    import torchvision
    from torch.hub import load_state_dict_from_url

    name = model.removeprefix(_BY_NAME)
    known = torchvision.models.get_model_weights(name).DEFAULT
    network = torchvision.models.get_model(name, weights=None)
    # From torch's own cache, if they are there.
    network.load_state_dict(
        load_state_dict_from_url(known.url, progress=False, check_hash=True, weights_only=True)
    )
    looks = known.transforms()
    return features(headless(network), looks.crop_size[0], looks.mean, looks.std)


def headless(network: "nn.Module") -> "nn.Module":
    """The network without its last linear layer, in place: it gives what that layer read.

    >>> from torch import nn, ones
    >>> headless(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 9)))(ones(4, 2)).shape
    torch.Size([4, 3])
    """
    from torch import nn

    linear = [name for name, part in network.named_modules() if isinstance(part, nn.Linear)]
    if not linear or not linear[-1]:
        raise InputError(f"{type(network).__name__} ends in no linear layer: take another model")
    network.set_submodule(linear[-1], nn.Identity())
    return network.eval()


def features(
    network: Callable[[Any], Any], side: int, mean: Sequence[float], std: Sequence[float]
) -> Callable[[Any], Any]:
    """A function that brings images to the form that a network reads, and gives what it returns.

    Args:
        network: from [n 3 side side] to [n ...].
        side: pixels that it reads.
        mean: of each colour, from 0 to 1.
        std: likewise.
    """
    import torch

    centre, scale = (torch.tensor(list(each)).reshape(1, 3, 1, 1) for each in (mean, std))

    @torch.inference_mode()
    def found(rows: Any) -> Any:
        parts = []
        for part in torch.as_tensor(np.asarray(rows)).split(_PART):
            x = torch.nn.functional.interpolate(part.float() / 255, (side, side), mode="bilinear")
            parts.append(network((x - centre) / scale).reshape(len(part), -1))
        return torch.cat(parts)

    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text()) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): fetch the model anew") from error
    return found if isinstance(found, dict) else {}
