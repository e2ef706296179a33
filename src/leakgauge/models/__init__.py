"""Small networks built from a seed, and the trained victims that ship with the package."""

from leakgauge.models.cnn import CNN
from leakgauge.models.lenet import LeNet
from leakgauge.models.mlp import MLP
from leakgauge.models.next_token import MaskedTokens, NextToken
from leakgauge.models.pretrained import PRETRAINED, pretrained
from leakgauge.models.text import TextTransformer
from leakgauge.models.vgg import VGG
from leakgauge.models.vit import ViT

__all__ = [
    "CNN",
    "MLP",
    "PRETRAINED",
    "VGG",
    "LeNet",
    "MaskedTokens",
    "NextToken",
    "TextTransformer",
    "ViT",
    "pretrained",
]
