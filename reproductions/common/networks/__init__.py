"""The papers' own networks, built from a seed."""

from reproductions.common.networks.cifar_resnet import CifarResNet, load_cifar_resnet
from reproductions.common.networks.detection_loss import DetectionLoss
from reproductions.common.networks.ir152 import IR152
from reproductions.common.networks.privacy_tokens import TokenAlexNet, TokenCNN, TokenLeNet, TokenMLP
from reproductions.common.networks.resnet import ResNet18
from reproductions.common.networks.split_vit import SplitViT
from reproductions.common.networks.swin import Swin
from reproductions.common.networks.vgg19 import VGG19
from reproductions.common.networks.yolo import YOLO

__all__ = [
    "IR152",
    "VGG19",
    "YOLO",
    "CifarResNet",
    "DetectionLoss",
    "ResNet18",
    "SplitViT",
    "Swin",
    "TokenAlexNet",
    "TokenCNN",
    "TokenLeNet",
    "TokenMLP",
    "load_cifar_resnet",
]
